package placement

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// The rules of Algorithm 1 one by one, on clusters small enough to check by hand, and invalid input.

// rack makes a node with one NIC and GPUs beside it.
func rack(name, spine, leaf string, cores int64, gpus int) Node {
	near := Locality{Switch: 0, NUMA: 0}
	n := Node{
		Name: name, Zone: "z", Spine: spine, Leaf: leaf,
		Resources: Resources{Cores: cores, Memory: 100, Disk: 100},
		CPUs:      []CPU{{near, cores}}, NICs: []NIC{{Locality: near}},
	}
	for range gpus {
		n.GPUs = append(n.GPUs, GPU{Locality: near})
	}
	return n
}

func clusterOf(t *testing.T, options Options, nodes ...Node) *Cluster {
	t.Helper()
	c, err := NewCluster(options)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		if err := c.AddNode(n); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func worker(name, service string, cores int64) Instance {
	return Instance{Name: name, Service: service, Resources: Resources{Cores: cores}}
}

func mustPlace(t *testing.T, c *Cluster, in Instance) Assignment {
	t.Helper()
	a, err := c.Place(in)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func rejected(t *testing.T, err error) *Rejection {
	t.Helper()
	rejection := new(Rejection)
	if !errors.As(err, &rejection) {
		t.Fatalf("want a rejection, got %v", err)
	}
	return rejection
}

func TestServiceStaysBelowItsSpine(t *testing.T) {
	nodes := []Node{rack("a", "s1", "l1", 4, 0), rack("b", "s2", "l1", 4, 0)}
	c := clusterOf(t, Options{}, nodes...)
	for i := range 4 {
		if a := mustPlace(t, c, worker(fmt.Sprint(i), "x", 1)); a.Node != "a" {
			t.Fatalf("instance %d runs on %s", i, a.Node)
		}
	}
	_, err := c.Place(worker("5", "x", 1))
	if r := rejected(t, err); r.Turned[RuleSpine] != 1 || r.Turned[RuleCores] != 1 {
		t.Errorf("turned away by %v", r.Turned)
	}
	if err := c.Declare(Service{Name: "x", Spines: Preferred}); err != nil {
		t.Fatal(err)
	}
	if a := mustPlace(t, c, worker("5", "x", 1)); a.Node != "b" {
		t.Errorf("preferred: runs on %s", a.Node)
	}
}

func TestServiceInTwoSpinesGrowsWhereMostOfItRuns(t *testing.T) {
	c := clusterOf(t, Options{}, rack("a", "s1", "l1", 4, 0), rack("b", "s2", "l1", 4, 0))
	for i, node := range []string{"a", "b", "b"} {
		if _, err := c.Bind(worker(fmt.Sprint(i), "x", 1), node); err != nil {
			t.Fatal(err)
		}
	}
	if a := mustPlace(t, c, worker("new", "x", 1)); a.Node != "b" {
		t.Errorf("runs on %s", a.Node)
	}
}

func TestFirstInstanceTakesTheTightestSpineWithRoomForTheWholeService(t *testing.T) {
	c := clusterOf(t, Options{},
		rack("a", "s1", "l1", 10, 0), rack("b", "s2", "l1", 14, 0), rack("c", "s3", "l1", 30, 0))
	expect := func(name string, cores int64) {
		if err := c.Declare(Service{Name: name, Expected: Demand{Resources: Resources{Cores: cores}}}); err != nil {
			t.Fatal(err)
		}
	}
	// 10 cores with growth are 13: a is too small, b is the tightest.
	expect("x", 10)
	if a := mustPlace(t, c, worker("x", "x", 1)); a.Node != "b" {
		t.Errorf("x runs on %s", a.Node)
	}
	// 12 of the 13 free cores of b are promised, so a service of 5 cores goes to a.
	expect("y", 5)
	if a := mustPlace(t, c, worker("y", "y", 1)); a.Node != "a" {
		t.Errorf("y runs on %s", a.Node)
	}
	// No spine has room for 39, so the roomiest is used.
	expect("z", 30)
	if a := mustPlace(t, c, worker("z", "z", 1)); a.Node != "c" {
		t.Errorf("z runs on %s", a.Node)
	}
}

func TestLeafWithMostInstancesComesFirst(t *testing.T) {
	c := clusterOf(t, Options{}, rack("a", "s", "l1", 9, 0), rack("b", "s", "l2", 3, 0), rack("c", "s", "l2", 3, 0))
	for i, node := range []string{"a", "b", "b"} {
		if _, err := c.Bind(worker(fmt.Sprint(i), "x", 1), node); err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range []string{"b", "c", "c", "c", "a"} {
		if a := mustPlace(t, c, worker(fmt.Sprint("new", i), "x", 1)); a.Node != want {
			t.Errorf("instance %d runs on %s, want %s", i, a.Node, want)
		}
	}
}

func TestGPUNearestToANICIsTaken(t *testing.T) {
	n := rack("n", "s", "l", 16, 0)
	n.GPUs = []GPU{{Locality: Locality{Switch: 3, NUMA: 1}}, {Locality: Locality{Switch: 1, NUMA: 0}}, {Locality: Locality{Switch: 0, NUMA: 0}}}
	c := clusterOf(t, Options{}, n)
	for i, want := range []struct {
		gpu      int
		distance Distance
	}{{2, SameSwitch}, {1, SameNUMA}, {0, Far}} {
		in := worker(fmt.Sprint(i), "x", 1)
		in.GPUs, in.NIC, in.Role = 1, 25, RoleDense
		if a := mustPlace(t, c, in); a.GPUs[0].Index != want.gpu || a.Distance != want.distance {
			t.Errorf("instance %d gets GPU %d at %v", i, a.GPUs[0].Index, a.Distance)
		}
	}
}

func TestCoresNearestToTheNICAreTaken(t *testing.T) {
	far := rack("a", "s", "l", 8, 0)
	far.CPUs = []CPU{{Locality{Switch: -1, NUMA: 1}, 4}, {Locality{Switch: 0, NUMA: 0}, 4}}
	c := clusterOf(t, Options{}, far)
	in := worker("1", "x", 6)
	in.NIC = 1
	a := mustPlace(t, c, in)
	if len(a.CPUs) != 2 || a.CPUs[0] != (CPUShare{1, 4}) || a.CPUs[1] != (CPUShare{0, 2}) || a.Distance != Far {
		t.Errorf("got %+v", a)
	}
}

func TestDensityBelowTheRunningCountAdmitsNoMore(t *testing.T) {
	c := clusterOf(t, Options{}, rack("a", "s", "l", 8, 0))
	for i := range 3 {
		mustPlace(t, c, worker(fmt.Sprint(i), "x", 1))
	}
	in := worker("limited", "x", 1)
	in.Density = 2
	_, err := c.Place(in)
	if r := rejected(t, err); r.Turned[RuleDensity] != 1 || r.Nearest.Shortages[0] != (Shortage{RuleDensity, 4, 2}) {
		t.Errorf("got %v", r)
	}
	in.Service = "other"
	mustPlace(t, c, in)
	// The limit of a running instance also applies to later instances without a limit.
	mustPlace(t, c, worker("second", "other", 1))
	_, err = c.Place(worker("third", "other", 1))
	if r := rejected(t, err); r.Turned[RuleDensity] != 1 {
		t.Errorf("got %v", r)
	}
}

func TestNICAndUplinkAreNotOverbooked(t *testing.T) {
	share := func(name string, percent int) Instance {
		in := worker(name, "x", 1)
		in.NIC = percent
		return in
	}
	c := clusterOf(t, Options{}, rack("a", "s", "l", 9, 0), rack("b", "s", "l", 9, 0))
	mustPlace(t, c, share("1", 60))
	if a := mustPlace(t, c, share("2", 60)); a.Node != "b" {
		t.Errorf("60 %% twice on one NIC: %s", a.Node)
	}
	_, err := c.Place(share("3", 60))
	if r := rejected(t, err); r.Turned[RuleNIC] != 2 {
		t.Errorf("got %v", r)
	}
	// Two NICs are 200 %, the uplink takes 160.
	mustPlace(t, c, share("4", 40))
	_, err = c.Place(share("5", 1))
	if r := rejected(t, err); r.Turned[RuleNIC]+r.Turned[RuleUplink] != 2 || r.Turned[RuleUplink] == 0 {
		t.Errorf("got %v", r)
	}
}

func TestGroupsRunInDifferentSpinesOrZones(t *testing.T) {
	nodes := []Node{rack("a", "s1", "l", 9, 0), rack("b", "s2", "l", 9, 0), rack("c", "s3", "l", 9, 0)}
	nodes[2].Zone = "z2"
	for _, one := range []struct {
		apart Apart
		want  string
	}{{ApartBySpine, "b"}, {ApartByZone, "c"}} {
		c := clusterOf(t, Options{}, nodes...)
		if err := c.Declare(Service{Name: "x", Groups: 2, Apart: one.apart}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Bind(worker("1", "x", 1), "a"); err != nil {
			t.Fatal(err)
		}
		second := worker("2", "x", 1)
		second.Group = 1
		if a := mustPlace(t, c, second); a.Node != one.want {
			t.Errorf("apart %v: runs on %s, want %s", one.apart, a.Node, one.want)
		}
		second.Name, second.Group = "3", 2
		if _, err := c.Place(second); err == nil || !strings.Contains(err.Error(), "group must be below 2") {
			t.Errorf("group 2 of 2: %v", err)
		}
	}
}

func TestMIGPartitionsTakePublishedPositions(t *testing.T) {
	n := rack("n", "s", "l", 99, 1)
	n.GPUs[0].Model, n.GPUs[0].MIG = "A100-80GB", true
	for _, one := range []struct {
		profile string
		starts  []int
	}{
		{"1g.10gb", []int{0, 1, 2, 3, 4, 5, 6}},
		{"2g.20gb", []int{0, 2, 4}},
		{"3g.40gb", []int{0, 4}},
		{"7g.80gb", []int{0}},
	} {
		c := clusterOf(t, Options{}, n)
		in := worker("", "x", 1)
		in.GPUs, in.Profile = 1, one.profile
		for i, start := range one.starts {
			in.Name = fmt.Sprint(i)
			if a := mustPlace(t, c, in); a.GPUs[0].Start != start {
				t.Errorf("%s number %d starts at %d", one.profile, i, a.GPUs[0].Start)
			}
		}
		in.Name = "more"
		_, err := c.Place(in)
		if r := rejected(t, err); r.Turned[RuleGPU] != 1 {
			t.Errorf("%s: %v", one.profile, r)
		}
	}
	c := clusterOf(t, Options{}, n)
	whole := worker("whole", "x", 1)
	whole.GPUs = 1
	if _, err := c.Place(whole); err == nil {
		t.Error("a GPU in MIG mode was given as a whole")
	}
}

func TestRejectionNamesRulesAndTheNearestMiss(t *testing.T) {
	c := clusterOf(t, Options{}, rack("small", "s", "l", 2000, 0), rack("large", "s", "l", 6000, 1))
	in := worker("i", "x", 8000)
	in.GPUs = 1
	_, err := c.Place(in)
	const want = `no node takes instance "i": of 2 nodes, 2 rejected by rule cores; nearest: node "large" has 6 cores free, needs 8`
	if err.Error() != want {
		t.Errorf("got  %s\nwant %s", err, want)
	}
}

func TestPlanReportsTheBlockingRule(t *testing.T) {
	c := clusterOf(t, Options{}, rack("a", "s", "l", 96, 8))
	in := worker("i", "x", 48)
	in.GPUs = 1
	copies, blocked, err := c.Plan([]Instance{in}, 100)
	if err != nil || copies != 2 || blocked.Turned[RuleCores] != 1 {
		t.Errorf("%d copies, %v, %v", copies, blocked, err)
	}
	if copies, blocked, err = c.Plan([]Instance{in}, 1); copies != 1 || blocked != nil || err != nil {
		t.Errorf("limit 1: %d copies, %v, %v", copies, blocked, err)
	}
	if _, _, err := c.Plan(nil, 1); err == nil {
		t.Error("a plan of nothing is no error")
	}
}

func TestBadInputIsRefused(t *testing.T) {
	node := func(change func(*Node)) error {
		n := rack("n", "s", "l", 4, 2)
		change(&n)
		return clusterOf(t, Options{}).AddNode(n)
	}
	instance := func(change func(*Instance)) error {
		in := worker("i", "x", 1)
		change(&in)
		_, err := clusterOf(t, Options{}, rack("n", "s", "l", 4, 2)).Place(in)
		return err
	}
	option := func(o Options) error {
		_, err := NewCluster(o)
		return err
	}
	full := clusterOf(t, Options{}, rack("n", "s", "l", 4, 2))
	mustPlace(t, full, worker("i", "x", 1))
	_, twice := full.Place(worker("i", "x", 1))
	_, nowhere := full.Bind(worker("j", "x", 1), "elsewhere")
	_, large := full.Bind(worker("j", "x", 5), "n")
	_, gone := full.RemoveNode("elsewhere")
	restore := full.Restore(Assignment{Instance: worker("j", "x", 1), Node: "n", CPUs: []CPUShare{{7, 1}}})
	if err := full.Lend(Loan{Name: "loan", Until: 1}); err != nil {
		t.Fatal(err)
	}
	for _, one := range []struct {
		name string
		err  error
		says string
	}{
		{"no name", node(func(n *Node) { n.Name = "" }), "no name"},
		{"negative cores", node(func(n *Node) { n.Cores = -1 }), "cores must be >= 0, got -1"},
		{"negative memory", node(func(n *Node) { n.Memory = -1 }), "memory must be >= 0"},
		{"negative group of cores", node(func(n *Node) { n.CPUs[0].Cores = -4 }), "CPU group 0 must be >= 0"},
		{"groups do not add up", node(func(n *Node) { n.Cores = 5 }), "CPU groups have 4 millicores, the node 5"},
		{"GPU twice", node(func(n *Node) { n.GPUs[0].ID, n.GPUs[1].ID = "g", "g" }), "GPU g is listed twice"},
		{"NIC twice", node(func(n *Node) { n.NICs = append(n.NICs, NIC{ID: "0"}) }), "NIC 0 is listed twice"},
		{"unknown MIG model", node(func(n *Node) { n.GPUs[0].MIG = true }), "no known profiles"},
		{"node twice", full.AddNode(rack("n", "s", "l", 1, 0)), "in the cluster already"},
		{"unnamed instance", instance(func(in *Instance) { in.Name = "" }), "has no name"},
		{"negative request", instance(func(in *Instance) { in.Disk = -1 }), "disk must be >= 0"},
		{"negative GPUs", instance(func(in *Instance) { in.GPUs = -1 }), "GPUs must be >= 0"},
		{"NIC above 100", instance(func(in *Instance) { in.NIC = 101 }), "NIC share must be in [0, 100]"},
		{"negative density", instance(func(in *Instance) { in.Density = -1 }), "density must be >= 0"},
		{"negative group", instance(func(in *Instance) { in.Group = -1 }), "group must be >= 0"},
		{"unknown profile", instance(func(in *Instance) { in.GPUs, in.Profile = 1, "9g" }), `profile "9g" is unknown`},
		{"profile without GPUs", instance(func(in *Instance) { in.Profile = "2g.20gb" }), "asks for 0 GPUs"},
		{"unknown role", instance(func(in *Instance) { in.Role = 9 }), "role 9"},
		{"instance twice", twice, `runs already, on node "n"`},
		{"unknown node", nowhere, `node "elsewhere" is not in the cluster`},
		{"bound without room", large, "needs 0.005"},
		{"removed twice", gone, `node "elsewhere" is not in the cluster`},
		{"unknown device", restore, "CPU group 7 has no 1 millicores free"},
		{"unknown instance", full.Release("absent"), "does not run"},
		{"unnamed service", full.Declare(Service{}), "no name"},
		{"negative expectation", full.Declare(Service{Name: "x", Expected: Demand{GPUs: -1}}), "must be >= 0"},
		{"growth below 1", option(Options{Growth: 0.5}), "Growth must be >= 1, got 0.5"},
		{"negative uplink", option(Options{UplinkNICs: -1}), "UplinkNICs must be >= 0"},
		{"loan twice", full.Lend(Loan{Name: "loan", Until: 1}), "lent already"},
		{"loan of a known node", full.Lend(Loan{Name: "l", Nodes: []Node{rack("m", "s", "l", 1, 0), rack("n", "s", "l", 1, 0)}}), "in the cluster already"},
	} {
		if one.err == nil || !strings.Contains(one.err.Error(), one.says) {
			t.Errorf("%s: got %v, want an error with %q", one.name, one.err, one.says)
		}
	}
	if full.hosts["m"] != nil {
		t.Error("a refused loan left a node")
	}
}

func TestRoles(t *testing.T) {
	for role := RoleCPU; role <= RoleWhole; role++ {
		if got, err := ParseRole(role.String()); err != nil || got != role {
			t.Errorf("%v: %v, %v", role, got, err)
		}
	}
	if _, err := ParseRole("gpu"); err == nil {
		t.Error("role gpu is no error")
	}
}
