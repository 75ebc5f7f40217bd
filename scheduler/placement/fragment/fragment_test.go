package fragment

import (
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// Fragments of nodes small enough to count by hand, and policies compared with a scan that caches no scores.

func node(cores int64, gpus ...int) Node {
	return Node{Cores: cores, Memory: 1 << 40, GPUs: gpus}
}

func TestGPUFragmentsByHand(t *testing.T) {
	whole := Class{Pod{Cores: 8, GPUs: 1, Share: 1000}, 1}
	half := Class{Pod{Cores: 2, GPUs: 1, Share: 500}, 1}
	two := Class{Pod{Cores: 2, GPUs: 2, Share: 1000}, 1}
	cpu := Class{Pod{Cores: 1}, 1}
	for _, one := range []struct {
		name  string
		node  Node
		class Class
		want  float64
	}{
		{"fits, a smaller rest is lost", node(8, 1000, 300), whole, 300},
		{"too few cores: all is lost", node(7, 1000, 300), whole, 1300},
		{"no GPU has the share free", node(8, 400, 400), half, 800},
		{"shares that suffice are no fragments", node(2, 500, 600), half, 0},
		{"one GPU of two", node(8, 1000, 0), two, 1000},
		{"a class without GPUs loses all", node(8, 1000, 300), cpu, 1300},
		{"nothing is free", node(8, 0, 0), whole, 0},
	} {
		if got := GPU(&one.node, []Class{one.class}); got != one.want {
			t.Errorf("%s: %v, want %v", one.name, got, one.want)
		}
	}
	n := node(8, 1000, 300)
	mixed := []Class{{whole.Pod, 0.75}, {cpu.Pod, 0.25}}
	if got := GPU(&n, mixed); got != 0.75*300+0.25*1300 {
		t.Errorf("weighted: %v", got)
	}
	if got := GPU(&n, AskingGPU(mixed)); got != 300 {
		t.Errorf("classes that ask a GPU: %v", got)
	}
}

func TestCPUFragmentsByHand(t *testing.T) {
	n := node(10, 0)
	classes := []Class{{Pod{Cores: 4}, 0.5}, {Pod{Cores: 12}, 0.2}, {Pod{Cores: 1, GPUs: 1, Share: 1000}, 0.3}}
	if got := CPU(&n, classes); got != 5 {
		t.Errorf("got %v, want half of 10", got)
	}
	totals := Measure([]Node{node(10_000, 0), node(2_000, 1000)}, classes[2:], []Class{{Pod{Cores: 4_000}, 1}})
	if totals.FreeCores != 12 || totals.FragmentCores != 2 || totals.NoneCores != 2 || totals.FreeGPUs != 1 || totals.FragmentGPUs != 0 {
		t.Errorf("got %+v", totals)
	}
}

func TestClassesLeaveOutRareRequests(t *testing.T) {
	pods := []Pod{{Cores: 1}, {Cores: 1}, {Cores: 1}, {Cores: 2}}
	if all := Classes(pods, 1); len(all) != 2 || all[0].Weight != 0.75 || all[1].Cores != 2 {
		t.Errorf("all: %+v", all)
	}
	if few := Classes(pods, 0.7); len(few) != 1 || few[0].Weight != 1 {
		t.Errorf("cut at 70 %%: %+v", few)
	}
}

func drawPod(t *rapid.T) Pod {
	p := Pod{Cores: rapid.Int64Range(0, 40_000).Draw(t, "cores"), NIC: rapid.SampledFrom([]int{0, 0, 30}).Draw(t, "nic")}
	if p.GPUs = rapid.IntRange(0, 2).Draw(t, "gpus"); p.GPUs == 1 {
		p.Share = rapid.SampledFrom([]int{300, 500, 1000}).Draw(t, "share")
	} else if p.GPUs > 1 {
		p.Share = Whole
	}
	return p
}

func TestPoliciesEqualAScanWithoutCachedScores(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var full []Node
		for range rapid.IntRange(1, 6).Draw(t, "nodes") {
			n := NewNode("", rapid.Int64Range(0, 100_000).Draw(t, "cores"), 1000, rapid.IntRange(0, 4).Draw(t, "gpus"))
			n.NICs = []int{100}
			full = append(full, n)
		}
		kinds := make([]Pod, 4)
		for i := range kinds {
			kinds[i] = drawPod(t)
		}
		classes := Classes(kinds, 1)
		nodes := make([]Node, len(full))
		for i := range full {
			nodes[i] = full[i].Clone()
		}
		fresh := map[string]func() Policy{
			"least allocated": func() Policy { return LeastAllocated(nodes, full) },
			"most allocated":  func() Policy { return MostAllocated(nodes, full) },
			"best fit":        func() Policy { return BestFit(nodes) },
			"fgd":             func() Policy { return FGD(nodes, classes) },
		}
		name := rapid.SampledFrom([]string{"least allocated", "most allocated", "best fit", "fgd"}).Draw(t, "policy")
		kept := fresh[name]()
		type lease struct {
			pod   Pod
			node  int
			grant Grant
		}
		var leases []lease
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			if len(leases) > 0 && rapid.IntRange(0, 3).Draw(t, "give back") == 0 {
				at := rapid.IntRange(0, len(leases)-1).Draw(t, "lease")
				one := leases[at]
				nodes[one.node].Give(&one.pod, one.grant)
				kept.Changed(one.node)
				leases = append(leases[:at], leases[at+1:]...)
				continue
			}
			p := rapid.SampledFrom(kinds).Draw(t, "pod")
			at, gpus := kept.Choose(&p)
			if want, _ := fresh[name]().Choose(&p); at != want {
				t.Fatalf("%s: node %d with cached scores, %d without", name, at, want)
			}
			if at < 0 {
				for i := range nodes {
					if nodes[i].Fits(&p) {
						t.Fatalf("%s: node %d fits but was not chosen", name, i)
					}
				}
				continue
			}
			if !nodes[at].Fits(&p) {
				t.Fatalf("%s: node %d does not fit", name, at)
			}
			grant := nodes[at].Take(&p, gpus)
			kept.Changed(at)
			leases = append(leases, lease{p, at, grant})
			if n := &nodes[at]; n.Cores < 0 || n.NICs[0] < 0 || n.FreeGPU() < 0 || len(grant.GPUs) != p.GPUs {
				t.Fatalf("%s: over-allocated: %+v", name, n)
			}
		}
		for _, one := range leases {
			nodes[one.node].Give(&one.pod, one.grant)
		}
		for i := range nodes {
			if nodes[i].Cores != full[i].Cores || nodes[i].FreeGPU() != full[i].FreeGPU() || nodes[i].NICs[0] != 100 {
				t.Fatalf("after all pods ended: %+v, was %+v", nodes[i], full[i])
			}
		}
	})
}

func TestRandomTakesEveryNodeThatFits(t *testing.T) {
	nodes := []Node{node(8, 1000), node(1, 1000), node(8, 1000)}
	policy := Random(nodes, rand.New(rand.NewPCG(1, 1)))
	p := Pod{Cores: 4, GPUs: 1, Share: 500}
	seen := map[int]int{}
	for range 200 {
		at, gpus := policy.Choose(&p)
		if len(gpus) != 1 {
			t.Fatalf("GPUs %v", gpus)
		}
		seen[at]++
	}
	if seen[0] < 50 || seen[2] < 50 || len(seen) != 2 {
		t.Errorf("nodes taken: %v", seen)
	}
}
