package placement

// A GPU in MIG mode has eight memory slices. A profile takes consecutive slices from one of few start positions; the
// positions also keep the sum of compute slices within seven. The positions are those published by NVIDIA.

const (
	slicesPerGPU = 8
	wholeGPU     = slices8(0xff)
)

// slices8 is a set of memory slices of one GPU.
type slices8 uint8

type migProfile struct {
	size   int
	starts []int
}

func (p migProfile) mask(start int) slices8 {
	return slices8((1<<p.size - 1) << start)
}

// place returns the first position at which the profile fits among busy slices.
func (p migProfile) place(busy slices8) (start int, ok bool) {
	for _, start := range p.starts {
		if busy&p.mask(start) == 0 {
			return start, true
		}
	}
	return 0, false
}

var (
	profiles80 = map[string]migProfile{
		"1g.10gb": {1, []int{0, 1, 2, 3, 4, 5, 6}},
		"1g.20gb": {2, []int{0, 2, 4, 6}},
		"2g.20gb": {2, []int{0, 2, 4}},
		"3g.40gb": {4, []int{0, 4}},
		"4g.40gb": {4, []int{0}},
		"7g.80gb": {8, []int{0}},
	}
	profiles40 = map[string]migProfile{
		"1g.5gb":  {1, []int{0, 1, 2, 3, 4, 5, 6}},
		"1g.10gb": {2, []int{0, 2, 4, 6}},
		"2g.10gb": {2, []int{0, 2, 4}},
		"3g.20gb": {4, []int{0, 4}},
		"4g.20gb": {4, []int{0}},
		"7g.40gb": {8, []int{0}},
	}
)

func profilesOf(model string) map[string]migProfile {
	switch model {
	case "A100-80GB", "H100-80GB":
		return profiles80
	case "A100-40GB":
		return profiles40
	default:
		return nil
	}
}

// ProfileSlices returns how many of the eight memory slices of a GPU a MIG profile takes. If a name means two sizes, it
// returns the size on the larger GPU; 0 for an unknown profile.
func ProfileSlices(profile string) int {
	if p, ok := profiles80[profile]; ok {
		return p.size
	}
	return profiles40[profile].size
}
