package plugin

import (
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/utils/ptr"

	"rowmill.io/scheduler/placement"
	"rowmill.io/scheduler/placement/kube"
)

// Each rule in the framework of kube-scheduler: what fits, what is best, what rejections say, and what preemption sees.

func TestServiceStaysBelowItsSpineAndFewLeaves(t *testing.T) {
	f := newFixture(t, "", fabric("4", "100"))
	first := f.place(pod("a", "x", "1", "10").Obj())
	if first != "0-0-0" {
		t.Errorf("the first pod runs on %s", first)
	}
	f.mustFit(pod("b", "x", "1", "10").Obj(), "0-0-0", "0-0-1", "0-1-0", "0-1-1")
	f.mustPrefer(pod("b", "x", "1", "10").Obj(), "0-0-0", "0-0-1")
	f.mustFit(pod("other", "y", "1", "10").Obj(), "0-0-0", "0-0-1", "0-1-0", "0-1-1", "1-0-0", "1-0-1", "1-1-0", "1-1-1")
	p := pod("unrelated", "", "1", "0").Obj()
	if _, status, _ := f.fwk.RunPreFilterPlugins(f.ctx, framework.NewCycleState(), p); !status.IsSuccess() {
		t.Errorf("a pod without a service: %v", status)
	}
	f.mustFit(p, "0-0-0", "0-0-1", "0-1-0", "0-1-1", "1-0-0", "1-0-1", "1-1-0", "1-1-1")
}

func TestPreferredSpineRuleAdmitsOtherSpines(t *testing.T) {
	f := newFixture(t, `{"spineRule": "Preferred"}`, fabric("4", "100"))
	f.place(pod("a", "x", "1", "10").Obj())
	f.mustFit(pod("b", "x", "1", "10").Obj(), "0-0-0", "0-0-1", "0-1-0", "0-1-1", "1-0-0", "1-0-1", "1-1-0", "1-1-1")
	f.mustPrefer(pod("b", "x", "1", "10").Obj(), "0-0-0", "0-0-1")
}

func TestFirstPodCountsTheWaitingPodsOfItsService(t *testing.T) {
	// The tight spine has room for the first pod but not for the service: both pods wait, and count.
	nodes := []*v1.Node{node("roomy", "s0", "l0", "32", "0"), node("tight", "s1", "l0", "6", "0")}
	alone := pod("alone", "y", "4", "0").Obj()
	a, b := pod("a", "x", "4", "0").Obj(), pod("b", "x", "4", "0").Obj()
	f := newFixture(t, "", nodes, alone, a, b)
	f.mustPrefer(a, "roomy")
	f.mustPrefer(alone, "tight")
}

func TestRulesPerNodeNICAndUplink(t *testing.T) {
	f := newFixture(t, "", fabric("64", "100"))
	dense := func(name string) *v1.Pod {
		return pod(name, "x", "1", "0").Annotation(kube.DensityAnnotation, "1").Obj()
	}
	f.place(dense("a"))
	f.mustFit(dense("b"), "0-0-1", "0-1-0", "0-1-1")
	// A limit of a running pod holds for pods without one.
	f.mustFit(pod("c", "x", "1", "0").Obj(), "0-0-1", "0-1-0", "0-1-1")

	// Each leaf has two NICs, and pods may use 160 % of its uplink.
	for _, name := range []string{"d", "e", "f", "g"} {
		f.place(pod(name, "y", "1", "60").Obj())
	}
	a, _ := f.ask(pod("h", "y", "1", "50").Obj())
	for name, status := range a.rejected {
		if status.Code() != fwk.Unschedulable || status.Message() != reasons[placement.RuleNIC]+", "+reasons[placement.RuleUplink] {
			t.Errorf("%s: %v, %v", name, status.Code(), status)
		}
	}
	if len(a.rejected) != 4 {
		t.Errorf("fits %v, rejected %v", a.fits, a.rejected)
	}
	f.place(pod("i", "y", "1", "40").Obj())
	f.mustFit(pod("j", "y", "1", "40").Obj(), "0-1-0", "0-1-1")
	f.mustFit(pod("k", "y", "1", "0").Obj(), "0-0-0", "0-0-1", "0-1-0", "0-1-1")
}

func TestShareOfOneNICIsNotSplit(t *testing.T) {
	f := newFixture(t, `{"uplinkNICs": 10}`, []*v1.Node{node("n", "s", "l", "64", "200")})
	f.place(pod("a", "x", "1", "60").Obj())
	f.place(pod("b", "x", "1", "60").Obj())
	// 80 % are free, 40 % on each of two NICs.
	f.mustFit(pod("c", "x", "1", "50").Obj())
	f.mustFit(pod("d", "x", "1", "40").Obj(), "n")
}

func TestGroupsRunBelowDifferentSpines(t *testing.T) {
	f := newFixture(t, "", fabric("64", "0"))
	group := func(name, number string) *v1.Pod {
		return pod(name, "x", "1", "0").Annotation(kube.GroupAnnotation, number).Obj()
	}
	f.place(group("a", "0"))
	f.place(group("b", "1"))
	f.mustFit(group("c", "1"), "1-0-0", "1-0-1", "1-1-0", "1-1-1")
	a, _ := f.ask(group("d", "2"))
	if len(a.fits) != 0 || a.rejected["0-0-0"].Code() != fwk.UnschedulableAndUnresolvable || a.rejected["0-0-0"].Message() != reasons[placement.RuleGroup] {
		t.Errorf("%v, %v", a.fits, a.rejected)
	}
}

func TestPreemptionSeesWhatItFrees(t *testing.T) {
	running := pod("a", "x", "1", "100").Annotation(kube.DensityAnnotation, "1").Node("n").Obj()
	f := newFixture(t, `{"uplinkNICs": 1.25}`, []*v1.Node{node("n", "s", "l", "64", "100"), node("m", "s", "l", "64", "100")}, running)
	p := pod("b", "x", "1", "100").Annotation(kube.DensityAnnotation, "1").Obj()
	a, state := f.ask(p)
	if len(a.fits) != 0 || len(a.rejected["n"].Reasons()) != 3 || len(a.rejected["m"].Reasons()) != 1 {
		t.Fatalf("fits %v, rejected %v", a.fits, a.rejected)
	}
	info, err := f.snapshot.NodeInfos().Get("n")
	if err != nil {
		t.Fatal(err)
	}
	other, err := f.snapshot.NodeInfos().Get("m")
	if err != nil {
		t.Fatal(err)
	}
	victim, err := framework.NewPodInfo(running)
	if err != nil {
		t.Fatal(err)
	}
	trial := state.Clone()
	if status := f.fwk.RunPreFilterExtensionRemovePod(f.ctx, trial, p, victim, info); !status.IsSuccess() {
		t.Fatal(status)
	}
	for _, one := range []fwk.NodeInfo{info, other} {
		if status := f.fwk.RunFilterPlugins(f.ctx, trial, p, one); !status.IsSuccess() {
			t.Errorf("without the running pod: %v", status)
		}
		if status := f.fwk.RunFilterPlugins(f.ctx, state, p, one); status.IsSuccess() {
			t.Error("a trial changed the state from which it was cloned")
		}
	}
	nominated, err := framework.NewPodInfo(pod("c", "x", "1", "100").Obj())
	if err != nil {
		t.Fatal(err)
	}
	if status := f.fwk.RunPreFilterExtensionAddPod(f.ctx, trial, p, nominated, other); !status.IsSuccess() {
		t.Fatal(status)
	}
	if status := f.fwk.RunFilterPlugins(f.ctx, trial, p, other); len(status.Reasons()) != 3 {
		t.Errorf("with a nominated pod: %v", status)
	}
	if status := f.fwk.RunPreFilterExtensionRemovePod(f.ctx, trial, p, nominated, other); !status.IsSuccess() {
		t.Fatal(status)
	}
	if status := f.fwk.RunPreFilterExtensionAddPod(f.ctx, trial, p, victim, info); !status.IsSuccess() {
		t.Fatal(status)
	}
	if status := f.fwk.RunFilterPlugins(f.ctx, trial, p, info); len(status.Reasons()) != 3 {
		t.Errorf("after all is as before: %v", status)
	}
}

func TestNewServicePreemptsBelowOneSpine(t *testing.T) {
	f := newFixture(t, "", fabric("4", "0"), pod("a", "x", "1", "0").Obj(), pod("d", "x", "1", "0").Obj())
	nominate := func(name, node string) {
		info, err := framework.NewPodInfo(pod(name, "x", "1", "0").Obj())
		if err != nil {
			t.Fatal(err)
		}
		f.fwk.AddNominatedPod(f.plugin.state.logger, info, &fwk.NominatingInfo{NominatingMode: fwk.ModeOverride, NominatedNodeName: node})
	}
	nominate("a", "1-1-0")
	f.mustFit(pod("b", "x", "1", "0").Obj(), "1-0-0", "1-0-1", "1-1-0", "1-1-1")
	// The pod itself may still go elsewhere, and other services are not concerned.
	f.mustFit(pod("a", "x", "1", "0").Obj(), "0-0-0", "0-0-1", "0-1-0", "0-1-1", "1-0-0", "1-0-1", "1-1-0", "1-1-1")
	f.mustPrefer(pod("c", "y", "1", "0").Obj(), "0-0-0", "0-0-1")
	nominate("d", "0-0-0")
	f.mustFit(pod("b", "x", "1", "0").Obj(), "0-0-0", "0-0-1", "0-1-0", "0-1-1")
	f.place(pod("b", "x", "1", "0").Obj())
	f.mustFit(pod("a", "x", "1", "0").Obj(), "0-0-0", "0-0-1", "0-1-0", "0-1-1")
}

func TestEventsNameEachRule(t *testing.T) {
	f := newFixture(t, "", fabric("4", "100"))
	for _, name := range []string{"a", "b", "c"} {
		f.place(pod(name, "x", "3", "0").Annotation(kube.DensityAnnotation, "1").Obj())
	}
	p := pod("d", "x", "5", "0").Obj()
	_, state := f.ask(p)
	_, status := f.fwk.RunPostFilterPlugins(f.ctx, state, p, framework.NewDefaultNodeToStatus())
	for _, says := range []string{`instance "n/d": of 8 nodes, 4 rejected by rule spine, 4 by rule cores; nearest: node "0-1-1"`, "needs 5"} {
		if status.Code() != fwk.Unschedulable || !strings.Contains(status.Message(), says) {
			t.Errorf("%v does not say %q", status, says)
		}
	}
	if _, status := f.fwk.RunPostFilterPlugins(f.ctx, state, pod("other", "", "1", "0").Obj(), nil); status.Message() != "" {
		t.Errorf("a pod without a service: %v", status)
	}
	f.mustCount("rowmill_scheduler_unschedulable_attempts_total", "cores", 1)
	f.mustCount("rowmill_scheduler_unschedulable_attempts_total", "spine", 1)
	f.mustCount("rowmill_scheduler_unschedulable_attempts_total", "density", 0)
	f.mustCount("rowmill_scheduler_node_rejections_total", "density", 6)
}

func TestFirstPodCountsTheReplicasOfItsOwner(t *testing.T) {
	nodes := []*v1.Node{node("roomy", "s0", "l0", "32", "0"), node("tight", "s1", "l0", "6", "0")}
	for _, one := range []struct {
		kind string
		set  runtime.Object
	}{
		{"ReplicaSet", &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "set", Namespace: "n"}, Spec: appsv1.ReplicaSetSpec{Replicas: ptr.To[int32](3)}}},
		{"StatefulSet", &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "set", Namespace: "n"}, Spec: appsv1.StatefulSetSpec{Replicas: ptr.To[int32](3)}}},
	} {
		f := newFixture(t, "", nodes, one.set)
		owned := func(kind string) *v1.Pod {
			return pod("a", "x", "4", "0").OwnerReference("set", appsv1.SchemeGroupVersion.WithKind(kind)).Obj()
		}
		f.mustPrefer(owned(one.kind), "roomy")
		f.plugin.state.removePod("a")
		f.mustPrefer(owned("Job"), "tight")
	}
}

func TestPodIsTriedAgainIfTheSchedulerKnowsMore(t *testing.T) {
	running := pod("a", "x", "1", "0").Annotation(kube.DensityAnnotation, "1").Node("n").Obj()
	waiting := pod("b", "x", "1", "0").Obj()
	f := newFixture(t, "", []*v1.Node{node("n", "s", "l", "4", "0"), node("m", "other", "l", "4", "0")}, running)
	reject := func() {
		t.Helper()
		a, state := f.ask(waiting)
		if len(a.fits) != 0 {
			t.Fatalf("fits %v", a.fits)
		}
		f.fwk.RunPostFilterPlugins(f.ctx, state, waiting, framework.NewDefaultNodeToStatus())
	}
	tried := func() bool {
		select {
		case <-f.activated:
			return true
		case <-time.After(5 * retryDelay):
			return false
		}
	}
	reject()
	if tried() {
		t.Error("the pod is tried again, although nothing differs")
	}
	changes := []struct {
		name   string
		change func()
	}{
		{"a pod is gone", func() { f.snapshot = cache.NewSnapshot(nil, f.nodes) }},
		{"a node is new", func() {
			f.snapshot = cache.NewSnapshot([]*v1.Pod{running}, append(f.nodes[:2:2], node("new", "s", "l", "4", "0")))
		}},
		{"a node moved to the spine", func() {
			f.snapshot = cache.NewSnapshot([]*v1.Pod{running}, []*v1.Node{f.nodes[0], node("m", "s", "l", "4", "0")})
		}},
		{"a node moved to another leaf", func() {
			f.snapshot = cache.NewSnapshot([]*v1.Pod{running}, []*v1.Node{node("n", "s", "k", "4", "0"), f.nodes[1]})
		}},
	}
	f.plugin.snapshot = func() fwk.SharedLister { return f.snapshot }
	for _, one := range changes {
		one.change()
		reject()
		if !tried() {
			t.Errorf("%s: the pod is not tried again", one.name)
		}
	}
	f.snapshot = cache.NewSnapshot([]*v1.Pod{running}, []*v1.Node{f.nodes[0], node("m", "third", "l", "4", "0")})
	reject()
	if tried() {
		t.Error("a node that moved between other spines does not help")
	}
	f.snapshot = cache.NewSnapshot([]*v1.Pod{running}, f.nodes)
	_, state := f.ask(waiting)
	f.plugin.state.removePod(running.UID)
	f.snapshot = cache.NewSnapshot(nil, f.nodes)
	f.fwk.RunPostFilterPlugins(f.ctx, state, waiting, framework.NewDefaultNodeToStatus())
	if !tried() {
		t.Error("a pod went during the attempt: the waiting pod is not tried again")
	}
	f.plugin.retries.forget(waiting.UID)
	for range retriesMax + 1 {
		f.plugin.retries.again(waiting)
	}
	if got := len(f.plugin.retries.counts); got != 0 {
		t.Errorf("retries have no bound: %v", f.plugin.retries.counts)
	}
}

// mustCount checks a counter of a rule.
func (f *fixture) mustCount(name, rule string, want float64) {
	f.Helper()
	families, err := f.registry.Gather()
	if err != nil {
		f.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if family.GetName() == name && m.GetLabel()[0].GetValue() == rule {
				if got := m.GetCounter().GetValue(); got != want {
					f.Errorf("%s of rule %s is %v, want %v", name, rule, got, want)
				}
				return
			}
		}
	}
	f.Errorf("no metric %s of rule %s", name, rule)
}

func TestBadPodsAreRejectedWithTheReason(t *testing.T) {
	f := newFixture(t, "", fabric("4", "100"))
	for _, one := range []struct {
		name string
		pod  *v1.Pod
		says string
	}{
		{"role", pod("a", "x", "1", "0").Label(kube.RoleLabel, "gpu").Obj(), `label rowmill.io/role: role must be cpu, dense or whole, got "gpu"`},
		{"density", pod("a", "x", "1", "0").Annotation(kube.DensityAnnotation, "-1").Obj(), `annotation rowmill.io/density must be a whole number >= 0, got "-1"`},
		{"group", pod("a", "x", "1", "0").Annotation(kube.GroupAnnotation, "one").Obj(), `annotation rowmill.io/group must be a whole number >= 0, got "one"`},
		{"NIC", pod("a", "x", "1", "200").Obj(), "resource rowmill.io/nic-percent must be in [0, 100], the share of one NIC, got 200"},
	} {
		a, state := f.ask(one.pod)
		if a.status.Code() != fwk.UnschedulableAndUnresolvable || !strings.Contains(a.status.Message(), one.says) {
			t.Errorf("%s: %v, want %q", one.name, a.status, one.says)
		}
		if _, status := f.fwk.RunPostFilterPlugins(f.ctx, state, one.pod, nil); status.Message() != "" {
			t.Errorf("%s: the reason is repeated: %v", one.name, status)
		}
	}
}

func TestOnlyPodsOfServicesAreKeptOutOfBatches(t *testing.T) {
	f := newFixture(t, "", nil)
	if _, status := f.plugin.SignPod(f.ctx, pod("a", "x", "1", "0").Obj()); status.Code() != fwk.Unschedulable {
		t.Error(status)
	}
	if fragments, status := f.plugin.SignPod(f.ctx, pod("a", "", "1", "0").Obj()); !status.IsSuccess() || len(fragments) != 0 {
		t.Error(status)
	}
}

// proposal is a pod of a group with a proposed node.
type proposal struct {
	pod  *v1.Pod
	node string
}

func (p proposal) GetPod() *v1.Pod     { return p.pod }
func (p proposal) GetNodeName() string { return p.node }

func TestPlacementScorePrefersFewLeavesAndTheSpineOfTheService(t *testing.T) {
	f := newFixture(t, "", fabric("64", "0"))
	score := func(nodes ...string) int64 {
		proposed := &fwk.PodGroupAssignments{}
		for _, n := range nodes {
			proposed.ProposedAssignments = append(proposed.ProposedAssignments, proposal{pod("p-"+n, "x", "1", "0").Obj(), n})
		}
		got, status := f.plugin.ScorePlacement(f.ctx, nil, nil, proposed)
		if !status.IsSuccess() {
			t.Fatal(status)
		}
		return got
	}
	for _, one := range []struct {
		name  string
		nodes []string
		want  int64
	}{
		{"nothing", nil, 0},
		{"one leaf", []string{"1-0-0", "1-0-1"}, 100},
		{"two leaves", []string{"1-0-0", "1-1-1"}, 75},
		{"two spines", []string{"0-0-0", "1-0-0"}, 50},
	} {
		if got := score(one.nodes...); got != one.want {
			t.Errorf("%s: %d, want %d", one.name, got, one.want)
		}
	}
	f.place(pod("running", "x", "1", "0").Obj())
	if here, there := score("0-0-0", "0-0-1"), score("1-0-0", "1-0-1"); here != 100 || there != 50 {
		t.Errorf("below the spine of the service %d, below another %d", here, there)
	}
}

func TestOnlyEventsThatMayHelpWakePods(t *testing.T) {
	running := pod("running", "x", "1", "0").Node("0-0-0").Obj()
	f := newFixture(t, "", fabric("4", "100"), running)
	registered, err := f.plugin.EventsToRegister(f.ctx)
	if err != nil || len(registered) != 2 {
		t.Fatal(registered, err)
	}
	afterPod, afterNode := registered[0].QueueingHintFn, registered[1].QueueingHintFn
	waiting := pod("waiting", "x", "1", "50").Obj()
	for _, one := range []struct {
		name          string
		hint          fwk.QueueingHintFn
		before, after any
		want          fwk.QueueingHint
	}{
		{"a pod of the service ends", afterPod, running, nil, fwk.Queue},
		{"the pod itself changes", afterPod, waiting, waiting, fwk.Queue},
		{"a pod with a NIC ends", afterPod, pod("p", "y", "1", "20").Obj(), nil, fwk.Queue},
		{"a pod without one ends", afterPod, pod("p", "y", "1", "0").Obj(), nil, fwk.QueueSkip},
		{"a node comes to the spine", afterNode, nil, node("new", "s0", "l9", "4", "100"), fwk.Queue},
		{"a node comes to another spine", afterNode, nil, node("new", "s1", "l9", "4", "100"), fwk.QueueSkip},
		{"a node leaves", afterNode, f.nodes[0], nil, fwk.Queue},
		{"a node gets NICs", afterNode, node("n", "s0", "l0", "4", "100"), node("n", "s0", "l0", "4", "200"), fwk.Queue},
		{"a node gets cores", afterNode, node("n", "s0", "l0", "4", "100"), node("n", "s0", "l0", "8", "100"), fwk.QueueSkip},
		{"a node moves", afterNode, node("n", "s1", "l0", "4", "100"), node("n", "s0", "l0", "4", "100"), fwk.Queue},
	} {
		if got, err := one.hint(f.plugin.state.logger, waiting, one.before, one.after); got != one.want || err != nil {
			t.Errorf("%s: %v, %v", one.name, got, err)
		}
	}
}
