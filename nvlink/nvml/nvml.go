// Package nvml asks NVIDIA's management library what GPUs a machine has, and
// how they are connected. The answer is a topology.Inventory.
//
// The library is loaded when Read is called: a binary with this package starts
// on machines without it. Without the build tag cuda, or without cgo, Read
// answers ErrNotBuilt.
package nvml

import "errors"

// ErrNotBuilt says that this binary cannot ask.
var ErrNotBuilt = errors.New("this binary was not built with the tag cuda")

// ErrNoLibrary says that the management library could not be loaded.
var ErrNoLibrary = errors.New("libnvidia-ml.so.1 cannot be loaded")

// ErrNoDriver says that the library is there and the kernel's driver is not.
var ErrNoDriver = errors.New("NVIDIA's kernel driver is not loaded")

// ErrMismatch says that library and driver are of different versions, as after
// an update without a restart.
var ErrMismatch = errors.New("libnvidia-ml.so.1 and the kernel driver are of different versions")

// ErrPermission says that this user must not use the devices.
var ErrPermission = errors.New("no permission to use the NVIDIA devices")
