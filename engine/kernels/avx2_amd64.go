package kernels

func newAVX2() ops {
	return &simd{
		title: "avx2",
		pair: tileKernels[float32]{
			size:     4,
			mul:      mulKernels[float32]{1: avx2MulBF16x1, 4: avx2MulBF16x4},
			scores:   scoreKernels[float32]{1: avx2ScoresBF16x1, 4: avx2ScoresBF16x4},
			values64: valueKernels[float32]{1: avx2ValuesBF16x1d64},
			values16: valueKernels[float32]{1: avx2ValuesBF16x1d16, 4: avx2ValuesBF16x4d16},
		},
		full: tileKernels[float32]{
			size:     4,
			mul:      mulKernels[float32]{1: avx2MulF32x1, 4: avx2MulF32x4},
			scores:   scoreKernels[float32]{1: avx2ScoresF32x1, 4: avx2ScoresF32x4},
			values64: valueKernels[float32]{1: avx2ValuesF32x1d64},
			values16: valueKernels[float32]{1: avx2ValuesF32x1d16, 4: avx2ValuesF32x4d16},
		},
		f16: mulKernels[float32]{1: avx2MulF16x1, 4: avx2MulF16x4},

		roundFull:   avx2Round,
		softmaxPair: avx2SoftmaxBF16,
		softmaxFull: avx2SoftmaxF32,

		expN:        avx2Exp,
		mergeN:      avx2Merge,
		scaleN:      avx2Scale,
		sumSquaresN: avx2SumSquares,
		scaleMulN:   avx2ScaleMul,
		ropeN:       avx2Rope,
		siluMulN:    avx2SiLUMul,
		addN:        avx2Add,
	}
}
