// Package admission says which blocks are worth a place in the overflow pool:
// Doorkeeper keeps what was used once from costing writes to an SSD, Budget
// bounds the bytes that are written in a day, Cost is what the loss of a block
// would cost, which orders what is given up first.
package admission
