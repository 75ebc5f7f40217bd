package placement

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// Questions of schedulers that search themselves: they must agree with Place, what they assume must equal the same
// change made for real, and instances beyond the room of a node must be counted and released without trace.

// ruleSet reduces shortages to what can be compared between two clusters.
func ruleSet(t *rapid.T, q *Question, node string, assumed Change) []Shortage {
	missed, err := q.Misses(node, assumed)
	if err != nil {
		t.Fatal(err)
	}
	return missed
}

func TestQuestionsAgreeWithPlace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newPair(t)
		for range rapid.IntRange(0, 12).Draw(t, "running") {
			p.place(t, p.draw(t))
		}
		in := p.draw(t)
		before := state(p.fast)
		q, err := p.fast.Ask(in)
		if err != nil {
			t.Fatal(err)
		}
		preference := q.Prefer()
		best, least := []string{}, 0
		for i := range p.slow.nodes {
			name := p.slow.nodes[i].Name
			if len(ruleSet(t, q, name, Change{})) > 0 {
				continue
			}
			if rank := preference.Rank(name); len(best) == 0 || rank < least {
				best, least = []string{name}, rank
			} else if rank == least {
				best = append(best, name)
			}
		}
		if after := state(p.fast); after != before {
			t.Fatalf("a question left:\n%s\nbefore:\n%s", after, before)
		}
		a, err := p.fast.Find(in)
		if (err == nil) != (len(best) > 0) || err == nil && !slices.Contains(best, a.Node) {
			t.Fatalf("place: %q, %v; best by rank: %q", a.Node, err, best)
		}
		if rejection := q.Reject(); err != nil && rejection.Error() != err.Error() {
			t.Fatalf("%v, not %v", rejection, err)
		}
	})
}

func TestAssumedChangesEqualRealOnes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newPair(t)
		for range rapid.IntRange(1, 12).Draw(t, "running") {
			p.place(t, p.draw(t))
		}
		in := p.draw(t)
		q, err := p.fast.Ask(in)
		if err != nil {
			t.Fatal(err)
		}
		// Instances of other services: without the last of its own, the service would have no spine.
		var assumed Change
		for name, a := range p.slow.running {
			if a.Service != in.Service && rapid.Bool().Draw(t, "gone") {
				assumed.Gone = append(assumed.Gone, name)
			}
		}
		slices.Sort(assumed.Gone)
		answers := map[string][]Shortage{}
		for i := range p.slow.nodes {
			answers[p.slow.nodes[i].Name] = ruleSet(t, q, p.slow.nodes[i].Name, assumed)
		}
		for _, name := range assumed.Gone {
			p.release(t, name)
		}
		for name, assumedMisses := range answers {
			if real := ruleSet(t, q, name, Change{}); !slices.Equal(real, assumedMisses) {
				t.Fatalf("node %q: assumed %v, real %v", name, assumedMisses, real)
			}
		}
		more := Addition{Instance: p.draw(t), Node: p.slow.nodes[0].Name}
		if more.Service == in.Service {
			return
		}
		answer := ruleSet(t, q, more.Node, Change{More: []Addition{more}})
		if err := p.fast.Adopt(more.Instance, more.Node); err != nil {
			t.Fatal(err)
		}
		if real := ruleSet(t, q, more.Node, Change{}); !slices.Equal(real, answer) {
			t.Fatalf("with %+v: assumed %v, real %v", more, answer, real)
		}
	})
}

func TestAdoptedInstancesLeaveNoTrace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newPair(t)
		before := state(p.fast)
		var adopted []string
		for range rapid.IntRange(1, 30).Draw(t, "adopted") {
			in := p.draw(t)
			in.Name += "-adopted"
			if p.fast.Adopt(in, p.slow.nodes[0].Name) == nil {
				adopted = append(adopted, in.Name)
			}
		}
		for _, name := range adopted {
			if err := p.fast.Release(name); err != nil {
				t.Fatal(err)
			}
		}
		if after := state(p.fast); after != before {
			t.Fatalf("left:\n%s\nbefore:\n%s", after, before)
		}
	})
}

func TestAdoptedInstancesBeyondTheRoomOfANodeCount(t *testing.T) {
	c := clusterOf(t, Options{UplinkNICs: 2}, rack("n", "s", "l", 4, 1))
	for _, name := range []string{"a", "b"} {
		in := worker(name, "x", 3)
		in.NIC, in.GPUs, in.Density = 80, 1, 1
		if err := c.Adopt(in, "n"); err != nil {
			t.Fatal(err)
		}
	}
	in := worker("c", "x", 1)
	in.NIC = 10
	q, err := c.Ask(in)
	if err != nil {
		t.Fatal(err)
	}
	missed, err := q.Misses("n", Change{})
	want := []Shortage{{RuleCores, 1, -2}, {RuleNIC, 10, 0}, {RuleDensity, 3, 1}, {RuleUplink, 10, 0}}
	if err != nil || !slices.Equal(missed, want) {
		t.Errorf("%v, %v", missed, err)
	}
	if _, err := q.Misses("elsewhere", Change{}); err == nil {
		t.Error("an unknown node is no error")
	}
	if err := c.Adopt(worker("d", "x", 1), "elsewhere"); err == nil {
		t.Error("an unknown node is no error")
	}
	if zone, spine, ok := q.Spine(); !ok || zone != "z" || spine != "s" || q.Spines() != 1 {
		t.Errorf("%q, %q, %v", zone, spine, ok)
	}
}

func TestWithdrawnServicesPromiseNothing(t *testing.T) {
	c := clusterOf(t, Options{}, rack("n", "s", "l", 8000, 0))
	before := state(c)
	for _, running := range []bool{false, true} {
		if err := c.Declare(Service{Name: "x", Expected: Demand{Resources: Resources{Cores: 6000}}}); err != nil {
			t.Fatal(err)
		}
		if running {
			mustPlace(t, c, worker("a", "x", 1000))
		}
		c.Withdraw("x")
		c.Withdraw("unknown")
		if running {
			if c.spines[0].promised != (Demand{}) {
				t.Errorf("still promised: %+v", c.spines[0].promised)
			}
			if err := c.Release("a"); err != nil {
				t.Fatal(err)
			}
		}
		if after := state(c); after != before {
			t.Errorf("left %s, before %s", after, before)
		}
	}
}
