package roofline

import "golang.org/x/sys/cpu"

func detect() peaks {
	x := &cpu.X86
	switch {
	case x.HasAVX512F:
		p := peaks{
			read:          func(b []byte) { avx512Read(&b[0], len(b)) },
			float:         func(n int) { avx512FMA(n) },
			floatPerRound: 24 * 16 * 2,
		}
		if x.HasAVX512BF16 {
			p.dot, p.dotPerRound = func(n int) { avx512Dot(n) }, 24*32*2
		}
		return p
	case x.HasAVX2 && x.HasFMA:
		return peaks{
			read:          func(b []byte) { avx2Read(&b[0], len(b)) },
			float:         func(n int) { avx2FMA(n) },
			floatPerRound: 12 * 8 * 2,
		}
	}
	return generic()
}
