package placement

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// The cluster with its indexes runs in parallel with the naive scan on random nodes, services, placements, releases and
// loans. Node, distance and rejection must be equal, no device may be used twice, and a release must restore the state.

func drawNode(t *rapid.T, number int) Node {
	label := func(name string, most int) string { return fmt.Sprint(rapid.IntRange(0, most).Draw(t, name)) }
	n := Node{
		Name: fmt.Sprintf("node-%02d", number),
		Zone: "z" + label("zone", 1), Spine: "s" + label("spine", 1), Leaf: "l" + label("leaf", 2),
		Resources: Resources{
			Memory: rapid.Int64Range(0, 8).Draw(t, "memory"),
			Disk:   rapid.Int64Range(2, 8).Draw(t, "disk"),
		},
	}
	locality := rapid.Custom(func(t *rapid.T) Locality {
		numa := rapid.IntRange(0, 1).Draw(t, "numa")
		return Locality{Switch: 2*numa + rapid.IntRange(0, 1).Draw(t, "switch"), NUMA: numa}
	})
	for range rapid.IntRange(1, 3).Draw(t, "cpus") {
		cores := rapid.Int64Range(0, 6).Draw(t, "cores")
		n.CPUs = append(n.CPUs, CPU{locality.Draw(t, "cpu at"), cores})
		n.Cores += cores
	}
	mig := rapid.Bool().Draw(t, "mig")
	for range rapid.IntRange(0, 4).Draw(t, "gpus") {
		n.GPUs = append(n.GPUs, GPU{Locality: locality.Draw(t, "gpu at"), Model: "A100-80GB", MIG: mig})
	}
	for range rapid.IntRange(0, 2).Draw(t, "nics") {
		n.NICs = append(n.NICs, NIC{Locality: locality.Draw(t, "nic at")})
	}
	return n
}

func drawInstance(t *rapid.T, name string) Instance {
	in := Instance{
		Name:    name,
		Service: rapid.SampledFrom([]string{"a", "b", "grouped"}).Draw(t, "service"),
		Resources: Resources{
			Cores:  rapid.Int64Range(0, 5).Draw(t, "asked cores"),
			Memory: rapid.Int64Range(0, 3).Draw(t, "asked memory"),
			Disk:   rapid.Int64Range(0, 1).Draw(t, "asked disk"),
		},
		NIC:     rapid.SampledFrom([]int{0, 1, 25, 51, 100}).Draw(t, "asked nic"),
		Density: rapid.IntRange(0, 3).Draw(t, "density"),
	}
	if in.Service == "grouped" {
		in.Group = rapid.IntRange(0, 1).Draw(t, "group")
	}
	if rapid.Bool().Draw(t, "dense") {
		in.Role = RoleDense
		in.GPUs = rapid.IntRange(1, 2).Draw(t, "asked gpus")
		in.Profile = rapid.SampledFrom([]string{"", "1g.10gb", "2g.20gb", "3g.40gb", "7g.80gb"}).Draw(t, "profile")
	}
	return in
}

type pair struct {
	fast  *Cluster
	slow  *naive
	named int
}

func newPair(t *rapid.T) *pair {
	options := Options{
		UplinkNICs:       rapid.SampledFrom([]float64{0, 1, 1.5}).Draw(t, "uplink"),
		Oversubscription: rapid.SampledFrom([]float64{1, 2}).Draw(t, "oversubscription"),
	}
	fast, err := NewCluster(options)
	if err != nil {
		t.Fatal(err)
	}
	p := &pair{fast: fast, slow: &naive{options: fast.options, services: map[string]Service{}, running: map[string]Assignment{}}}
	for _, s := range []Service{
		{Name: "a", Spines: rapid.SampledFrom([]Strength{Hard, Preferred}).Draw(t, "strength of a"), Expected: Demand{Resources: Resources{Cores: 4}, NIC: 60}},
		{
			Name: "grouped", Groups: 2, Spines: rapid.SampledFrom([]Strength{Hard, Preferred}).Draw(t, "strength"),
			Apart:    rapid.SampledFrom([]Apart{ApartBySpine, ApartByZone}).Draw(t, "apart"),
			Expected: Demand{Resources: Resources{Cores: 9, Memory: 3}, GPUs: 1},
		},
	} {
		p.slow.services[s.Name] = s
		if err := fast.Declare(s); err != nil {
			t.Fatal(err)
		}
	}
	for i := range rapid.IntRange(1, 10).Draw(t, "nodes") {
		p.addNode(t, drawNode(t, i))
	}
	return p
}

func (p *pair) addNode(t *rapid.T, n Node) {
	if err := p.fast.AddNode(n); err != nil {
		t.Fatal(err)
	}
	p.slow.nodes = append(p.slow.nodes, n)
}

func (p *pair) draw(t *rapid.T) Instance {
	p.named++
	return drawInstance(t, fmt.Sprintf("i%03d", p.named))
}

func (p *pair) place(t *rapid.T, in Instance) {
	want, distance := p.slow.find(&in)
	found, findErr := p.fast.Find(in)
	got, err := p.fast.Place(in)
	if (findErr == nil) != (err == nil) || found.Node != got.Node {
		t.Fatalf("Find says %q, %v; Place says %q, %v", found.Node, findErr, got.Node, err)
	}
	if want == "" {
		p.checkRejection(t, &in, err)
		return
	}
	if err != nil {
		t.Fatalf("%+v: want %s at %v, got %v", in, want, distance, err)
	}
	if got.Node != want || got.Distance != distance {
		t.Fatalf("%+v: want %s at %v, got %s at %v", in, want, distance, got.Node, got.Distance)
	}
	if twice := p.slow.overAllocated(&got); twice != "" {
		t.Fatalf("%+v: %s is used twice", got, twice)
	}
	p.slow.running[in.Name] = got
}

func (p *pair) checkRejection(t *rapid.T, in *Instance, err error) {
	rejection := new(Rejection)
	if !errors.As(err, &rejection) {
		t.Fatalf("%+v: want a rejection, got %v", in, err)
	}
	var turned [RuleCount]int
	for i := range p.slow.nodes {
		turned[p.slow.firstRule(&p.slow.nodes[i], in)]++
	}
	if turned != rejection.Turned || rejection.Nodes != len(p.slow.nodes) {
		t.Fatalf("%+v: rules turned away %v of %d nodes, want %v of %d", in, rejection.Turned, rejection.Nodes, turned, len(p.slow.nodes))
	}
	if rejection.Nearest == nil || len(rejection.Nearest.Shortages) == 0 {
		t.Fatalf("%+v: no nearest miss", in)
	}
	for _, s := range rejection.Nearest.Shortages {
		if s.Rule > RuleGroup && s.Has >= s.Needs {
			t.Fatalf("%+v: rule %v is met: %d of %d", in, s.Rule, s.Has, s.Needs)
		}
	}
}

func (p *pair) release(t *rapid.T, name string) {
	if err := p.fast.Release(name); err != nil {
		t.Fatal(err)
	}
	delete(p.slow.running, name)
}

func (p *pair) anyRunning(t *rapid.T) string {
	if len(p.slow.running) == 0 {
		t.Skip("nothing runs")
	}
	return rapid.SampledFrom(slices.Sorted(maps.Keys(p.slow.running))).Draw(t, "name")
}

func TestDecisionsEqualTheNaiveScan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newPair(t)
		t.Repeat(map[string]func(*rapid.T){
			"place":   func(t *rapid.T) { p.place(t, p.draw(t)) },
			"release": func(t *rapid.T) { p.release(t, p.anyRunning(t)) },
			"declare": func(t *rapid.T) {
				s := p.slow.services["a"]
				s.Expected.Cores = rapid.Int64Range(0, 9).Draw(t, "expected cores")
				s.Spines = rapid.SampledFrom([]Strength{Hard, Preferred}).Draw(t, "new strength")
				p.slow.services["a"] = s
				if err := p.fast.Declare(s); err != nil {
					t.Fatal(err)
				}
			},
			"bind": func(t *rapid.T) {
				in, node := p.draw(t), &p.slow.nodes[rapid.IntRange(0, len(p.slow.nodes)-1).Draw(t, "node")]
				got, err := p.fast.Bind(in, node.Name)
				if fits := p.slow.distance(node, &in) <= Far; fits != (err == nil) {
					t.Fatalf("%+v on %s: fits is %v, got %v", in, node.Name, fits, err)
				} else if fits {
					if twice := p.slow.overAllocated(&got); twice != "" {
						t.Fatalf("%+v: %s is used twice", got, twice)
					}
					p.slow.running[in.Name] = got
				}
			},
			"loan": func(t *rapid.T) {
				p.named++
				loan := Loan{Name: fmt.Sprint(p.named), Nodes: []Node{drawNode(t, 100+p.named), drawNode(t, 500+p.named)}, Until: 5}
				before := state(p.fast)
				if err := p.fast.Lend(loan); err != nil {
					t.Fatal(err)
				}
				p.slow.nodes = append(p.slow.nodes, loan.Nodes...)
				var placed []string
				for range 3 {
					in := p.draw(t)
					p.place(t, in)
					if a, ok := p.fast.Lookup(in.Name); ok && a.Node != loan.Nodes[0].Name && a.Node != loan.Nodes[1].Name {
						p.release(t, in.Name)
					} else if ok {
						placed = append(placed, in.Name)
					}
				}
				if early := p.fast.Return(4); len(early) > 0 {
					t.Fatalf("returned before the end: %v", early)
				}
				var gone []string
				for _, in := range p.fast.Return(5) {
					gone = append(gone, in.Name)
					delete(p.slow.running, in.Name)
				}
				if !slices.Equal(gone, placed) {
					t.Fatalf("%v ran on the loan, %v were returned", placed, gone)
				}
				p.slow.nodes = p.slow.nodes[:len(p.slow.nodes)-2]
				if after := state(p.fast); after != before {
					t.Fatalf("before the loan:\n%s\nafter:\n%s", before, after)
				}
			},
		})
	})
}

// state returns all state that affects decisions: free amounts and counts, in the order of names.
func state(c *Cluster) string {
	text := ""
	for _, s := range c.spines {
		text += fmt.Sprintf("%v %+v, promised %+v\n", s.key, s.free, s.promised)
		for _, l := range s.leaves {
			l.bounds.stale = true
			l.admits(&Instance{})
			text += fmt.Sprintf(" %s uplink %d of %d, %+v\n", l.name, l.uplink, l.nics, l.bounds)
			for _, h := range l.hosts {
				text += fmt.Sprintf("  %s %+v %v %v %v %d %d", h.Name, h.free, h.cores, h.busy, h.nic, h.idle, h.partible)
				tenants := slices.Clone(h.services)
				slices.SortFunc(tenants, func(a, b tenant) int { return compareStrings(a.service.Name, b.service.Name) })
				for _, t := range tenants {
					text += fmt.Sprintf(" %s:%d%v", t.service.Name, t.count, t.limits)
				}
				text += "\n"
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.services)) {
		groups := slices.Clone(c.services[name].groups)
		slices.SortFunc(groups, func(a, b *group) int { return a.number - b.number })
		for _, g := range groups {
			text += fmt.Sprintf("%s/%d: %d", name, g.number, g.count)
			for _, held := range g.leaves {
				text += fmt.Sprintf(" %v/%s:%d", held.leaf.spine.key, held.leaf.name, held.count)
			}
			text += "\n"
		}
	}
	return text
}

func compareStrings(a, b string) int {
	if a < b {
		return -1
	}
	return 1
}

func TestPlaceAllPlacesAllOrNoneAndPlanChangesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newPair(t)
		for range rapid.IntRange(0, 6).Draw(t, "running") {
			p.place(t, p.draw(t))
		}
		set := make([]Instance, rapid.IntRange(1, 6).Draw(t, "set"))
		for i := range set {
			set[i] = p.draw(t)
		}
		before := state(p.fast)
		copies, blocked, err := p.fast.Plan(set, 5)
		if err != nil {
			t.Fatal(err)
		}
		if after := state(p.fast); after != before {
			t.Fatalf("plan changed the cluster:\n%s\nto:\n%s", before, after)
		}
		if (copies < 5) != (blocked != nil) {
			t.Fatalf("%d copies fit, blocked is %v", copies, blocked)
		}
		seed := rapid.Uint64().Draw(t, "shuffle")
		placed, err := p.fast.PlaceAll(set)
		if (err == nil) != (copies > 0) {
			t.Fatalf("plan says %d, PlaceAll says %v", copies, err)
		}
		if err != nil {
			if after := state(p.fast); after != before {
				t.Fatalf("a failed PlaceAll left:\n%s\nbefore:\n%s", after, before)
			}
			return
		}
		for i := range placed {
			if twice := p.slow.overAllocated(&placed[i]); twice != "" {
				t.Fatalf("%+v: %s is used twice", placed[i], twice)
			}
			p.slow.running[placed[i].Name] = placed[i]
		}
		together := state(p.fast)
		p.fast.undo(placed)
		rand.New(rand.NewPCG(seed, 0)).Shuffle(len(set), func(i, j int) { set[i], set[j] = set[j], set[i] })
		if _, err := p.fast.PlaceAll(set); err != nil {
			t.Fatalf("another order of the same set: %v", err)
		}
		if after := state(p.fast); after != together {
			t.Fatalf("another order of the same set gives:\n%s\nnot:\n%s", after, together)
		}
	})
}

func TestOrderOfInputDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newPair(t)
		for range rapid.IntRange(0, 12).Draw(t, "running") {
			p.place(t, p.draw(t))
		}
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "shuffle"), 0))
		other, err := NewCluster(p.fast.options)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range p.slow.services {
			if err := other.Declare(s); err != nil {
				t.Fatal(err)
			}
		}
		for _, i := range random.Perm(len(p.slow.nodes)) {
			if err := other.AddNode(p.slow.nodes[i]); err != nil {
				t.Fatal(err)
			}
		}
		names := slices.Sorted(maps.Keys(p.slow.running))
		for _, i := range random.Perm(len(names)) {
			a := p.slow.running[names[i]]
			if err := other.Restore(a); err != nil {
				t.Fatal(err)
			}
		}
		if a, b := state(p.fast), state(other); a != b {
			t.Fatalf("state:\n%s\nin another order:\n%s", a, b)
		}
		for range 4 {
			in := p.draw(t)
			a, errA := p.fast.Place(in)
			b, errB := other.Place(in)
			if fmt.Sprint(a, errA) != fmt.Sprint(b, errB) {
				t.Fatalf("%v, %v; in another order %v, %v", a, errA, b, errB)
			}
		}
	})
}
