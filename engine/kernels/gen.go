package kernels

//go:generate go -C ../../tools/avo run . -dir ../../engine/kernels
