package kernels

import "golang.org/x/sys/cpu"

// detect lists what the processor and the operating system support, best
// first. An AVX-512 machine without the BF16 extension runs AVX2: BF16
// products are most of the work, and emulating them is bound by unpacking.
func detect() []ops {
	var all []ops
	x := &cpu.X86
	narrow := x.HasAVX2 && x.HasFMA && x.HasF16C
	if narrow && x.HasAVX512 && x.HasAVX512BF16 {
		all = append(all, newAVX512())
	}
	if narrow {
		all = append(all, newAVX2())
	}
	return append(all, ref{})
}
