package kernels

func selfCheck(ops) error { return nil }
