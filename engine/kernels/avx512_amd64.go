package kernels

func newAVX512() ops {
	return &simd{
		title: "avx512",
		wide:  true,
		half: tileKernels[uint16]{
			size:      2,
			mul:       mulKernels[uint16]{nil, avx512MulBF16x1, avx512MulBF16x2, avx512MulBF16x3, avx512MulBF16x4, avx512MulBF16x5, avx512MulBF16x6},
			scores:    scoreKernels[uint16]{nil, avx512ScoresBF16x1, avx512ScoresBF16x2, avx512ScoresBF16x3, avx512ScoresBF16x4, avx512ScoresBF16x5, avx512ScoresBF16x6},
			values64:  valueKernels[uint16]{nil, avx512ValuesBF16x1d64, avx512ValuesBF16x2d64, avx512ValuesBF16x3d64, avx512ValuesBF16x4d64, avx512ValuesBF16x5d64, avx512ValuesBF16x6d64},
			values128: [4]valueKernel[uint16]{nil, avx512ValuesBF16x1d128, avx512ValuesBF16x2d128, avx512ValuesBF16x3d128},
			values16:  valueKernels[uint16]{nil, avx512ValuesBF16x1d16, avx512ValuesBF16x2d16, avx512ValuesBF16x3d16, avx512ValuesBF16x4d16, avx512ValuesBF16x5d16, avx512ValuesBF16x6d16},
		},
		full: tileKernels[float32]{
			size:      4,
			mul:       mulKernels[float32]{nil, avx512MulF32x1, avx512MulF32x2, avx512MulF32x3, avx512MulF32x4, avx512MulF32x5, avx512MulF32x6},
			scores:    scoreKernels[float32]{nil, avx512ScoresF32x1, avx512ScoresF32x2, avx512ScoresF32x3, avx512ScoresF32x4, avx512ScoresF32x5, avx512ScoresF32x6},
			values64:  valueKernels[float32]{nil, avx512ValuesF32x1d64, avx512ValuesF32x2d64, avx512ValuesF32x3d64, avx512ValuesF32x4d64, avx512ValuesF32x5d64, avx512ValuesF32x6d64},
			values128: [4]valueKernel[float32]{nil, avx512ValuesF32x1d128, avx512ValuesF32x2d128, avx512ValuesF32x3d128},
			values16:  valueKernels[float32]{nil, avx512ValuesF32x1d16, avx512ValuesF32x2d16, avx512ValuesF32x3d16, avx512ValuesF32x4d16, avx512ValuesF32x5d16, avx512ValuesF32x6d16},
		},
		f16: mulKernels[float32]{nil, avx512MulF16x1, avx512MulF16x2, avx512MulF16x3, avx512MulF16x4, avx512MulF16x5, avx512MulF16x6},

		roundHalf:   avx512Round,
		softmaxHalf: avx512SoftmaxBF16,
		softmaxFull: avx512SoftmaxF32,

		storeKeyN:       avx512StoreKey,
		storeValuePairN: avx512StoreValuePair,

		expN:        avx512Exp,
		mergeN:      avx512Merge,
		scaleN:      avx512Scale,
		sumSquaresN: avx512SumSquares,
		scaleMulN:   avx512ScaleMul,
		ropeN:       avx512Rope,
		siluMulN:    avx512SiLUMul,
		addN:        avx512Add,
	}
}
