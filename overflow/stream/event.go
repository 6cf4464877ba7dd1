package stream

import "github.com/kvlend/kvlend/nvlink"

func isDone(e nvlink.Event) bool {
	select {
	case <-e.Done():
		return true
	default:
		return false
	}
}
