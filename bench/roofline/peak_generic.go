package roofline

// generic are the loops in plain Go: what a machine without assembly here
// reaches, not what it could.
func generic() peaks {
	return peaks{read: readGeneric, float: floatGeneric, floatPerRound: 16}
}

func readGeneric(b []byte) {
	var sum byte
	for i := 0; i < len(b); i += 64 {
		sum ^= b[i]
	}
	sink(float32(sum))
}

func floatGeneric(rounds int) {
	var a [8]float32
	for range rounds {
		for i := range a {
			a[i] = a[i]*0.5 + 1
		}
	}
	sink(a[0])
}

//go:noinline
func sink(float32) {}
