package kernels

func detect() []ops { return []ops{ref{}} }

func selfCheck(ops) error { return nil }
