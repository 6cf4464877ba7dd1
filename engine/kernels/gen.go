package kernels

//go:generate go -C ../../tools/avo run . -root ../..
