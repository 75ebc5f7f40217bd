package plugin

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/klog/v2/ktesting"
	"pgregory.net/rapid"

	"rowmill.io/scheduler/placement"
	"rowmill.io/scheduler/placement/kube"
)

// Events and reservations in any order: what the state answers depends only on the objects that exist in the end.

// tester is implemented by *testing.T and *rapid.T.
type tester interface {
	Helper()
	Fatal(...any)
}

func emptyState(t tester, log ktesting.TL) *state {
	t.Helper()
	args, err := readArgs(nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := newState(*args, newRuleMetrics(metrics.NewKubeRegistry().MustRegister), ktesting.NewLogger(log, ktesting.NewConfig()))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// answers describes what the state says about probes, and what it holds.
func (s *state) answers(t tester) string {
	t.Helper()
	var text strings.Builder
	fmt.Fprintln(&text, s.cluster.Len(), slices.Sorted(maps.Keys(s.services)))
	for _, service := range []string{"x", "y", "z"} {
		in := placement.Instance{Name: "probe", Service: service, Resources: placement.Resources{Cores: 3000}, NIC: 50, Density: 2}
		q, err := s.cluster.Ask(in)
		if err != nil {
			t.Fatal(err)
		}
		zone, spine, ok := q.Spine()
		preference := q.Prefer()
		fmt.Fprintln(&text, service, zone, spine, ok)
		for _, name := range slices.Sorted(maps.Keys(s.nodes)) {
			missed, err := q.Misses(name, placement.Change{})
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintln(&text, name, missed, preference.Rank(name))
		}
	}
	return text.String()
}

func TestStateDependsOnlyOnTheObjectsThatExist(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		s := emptyState(r, t)
		nodes, pods := map[string]*v1.Node{}, map[string]*v1.Pod{}
		reserved := map[string]string{}
		names := rapid.SampledFrom([]string{"n0", "n1", "n2", "n3"})
		for range rapid.IntRange(1, 40).Draw(r, "steps") {
			name := names.Draw(r, "node")
			podName := fmt.Sprint("p", rapid.IntRange(0, 7).Draw(r, "pod"))
			switch known := pods[podName]; rapid.IntRange(0, 6).Draw(r, "action") {
			case 0:
				nodes[name] = node(name, rapid.SampledFrom([]string{"s0", "s1", ""}).Draw(r, "spine"), "l", "8", "200")
				s.setNode(nodes[name])
			case 1:
				delete(nodes, name)
				s.removeNode(name)
			case 2, 3:
				if known != nil && (known.Spec.NodeName != "" || reserved[podName] != "") {
					continue
				}
				p := pod(podName, rapid.SampledFrom([]string{"x", "y", ""}).Draw(r, "service"), "3", "50").Obj()
				if rapid.Bool().Draw(r, "bound") {
					p.Spec.NodeName = name
				}
				pods[podName] = p
				s.setPod(p)
			case 4:
				if known != nil && known.Spec.NodeName == "" && reserved[podName] == "" && nodes[name] != nil {
					if err := s.reserve(known, name); err != nil {
						r.Fatal(err)
					}
					reserved[podName] = name
				}
			case 5:
				// The reservation ends: the pod is bound, or given back.
				if on := reserved[podName]; on != "" {
					delete(reserved, podName)
					if rapid.Bool().Draw(r, "bind") {
						known.Spec.NodeName = on
						s.setPod(known)
					}
					s.unreserve(known.UID, on)
					s.unreserve(known.UID, on)
				}
			case 6:
				if known == nil {
					s.removePod("unknown")
					continue
				}
				delete(pods, podName)
				if rapid.Bool().Draw(r, "ended") {
					known.Status.Phase = v1.PodSucceeded
					s.setPod(known)
				} else {
					s.removePod(known.UID)
				}
				if on := reserved[podName]; on != "" {
					delete(reserved, podName)
					s.unreserve(known.UID, on)
				}
			}
		}
		fresh := emptyState(r, t)
		for _, n := range nodes {
			fresh.setNode(n)
		}
		for name, p := range pods {
			bound := p.DeepCopy()
			if on := reserved[name]; on != "" {
				bound.Spec.NodeName = on
			}
			fresh.setPod(bound)
		}
		// NICs are taken in the order of arrival, so shares of 50 % of two NICs are equal in every order.
		if got, want := s.answers(r), fresh.answers(r); got != want {
			r.Fatalf("after events:\n%s\nafter a restart:\n%s", got, want)
		}
	})
}

func TestReservationsOfUnseenAndUnknown(t *testing.T) {
	s := emptyState(t, t)
	p := pod("p", "x", "1", "0").Obj()
	if err := s.reserve(p, "gone"); err == nil || !strings.Contains(err.Error(), `node "gone" is not known any more`) {
		t.Error(err)
	}
	s.setNode(node("n", "s", "l", "4", "0"))
	if err := s.reserve(p, "n"); err != nil || s.cluster.Len() != 1 {
		t.Error(err, s.cluster.Len())
	}
	s.unreserve(p.UID, "n")
	if s.cluster.Len() != 0 || len(s.pods) != 0 || len(s.services) != 0 {
		t.Errorf("a reservation left %v, %v", s.pods, s.services)
	}
	// The pod was deleted while it was reserved.
	s.setPod(p)
	if err := s.reserve(p, "n"); err != nil {
		t.Fatal(err)
	}
	s.removePod(p.UID)
	s.unreserve(p.UID, "n")
	if s.cluster.Len() != 0 || len(s.pods) != 0 {
		t.Errorf("a deleted pod left %v", s.pods)
	}
	bad := pod("bad", "x", "1", "0").Label(kube.RoleLabel, "gpu").Obj()
	if err := s.reserve(bad, "n"); err == nil {
		t.Error("a pod with a bad label is reserved")
	}
}

func TestOddButRunningPodsAreCounted(t *testing.T) {
	s := emptyState(t, t)
	s.setNode(node("a", "s0", "l", "4", "100"))
	s.setNode(node("b", "s1", "l", "64", "100"))
	// More than the node has, a bad role, and a service below two spines.
	s.setPod(pod("huge", "", "64", "300").Node("a").Obj())
	s.setPod(pod("bad", "x", "1", "0").Label(kube.RoleLabel, "gpu").Node("b").Obj())
	for i, on := range []string{"a", "b", "b"} {
		s.setPod(pod(fmt.Sprint("p", i), "y", "1", "0").Node(on).Annotation(kube.DensityAnnotation, "1").Obj())
	}
	if s.cluster.Len() != 5 {
		t.Errorf("%d pods are counted", s.cluster.Len())
	}
	q, err := s.cluster.Ask(placement.Instance{Name: "q", Service: "y"})
	if err != nil {
		t.Fatal(err)
	}
	if _, spine, ok := q.Spine(); !ok || spine != "s1" || q.Spines() != 2 {
		t.Errorf("the service grows below %q", spine)
	}
	missed, err := q.Misses("b", placement.Change{})
	if err != nil || len(missed) != 1 || missed[0] != (placement.Shortage{Rule: placement.RuleDensity, Needs: 3, Has: 1}) {
		t.Errorf("%v, %v", missed, err)
	}
}

func TestUnlabelledNodesFormOneLeafAndAreCounted(t *testing.T) {
	s := emptyState(t, t)
	plain := func(name string) *v1.Node {
		n := node(name, "", "", "4", "100")
		n.Labels = nil
		return n
	}
	s.setNode(plain("a"))
	s.setNode(plain("b"))
	s.setPod(pod("p", "x", "1", "0").Node("a").Obj())
	q, err := s.cluster.Ask(placement.Instance{Name: "q", Service: "x"})
	if err != nil {
		t.Fatal(err)
	}
	zone, spine, ok := q.Spine()
	if preference := q.Prefer(); !ok || preference.Rank("a") != preference.Rank("b") || len(s.nodesBelow(zone, spine)) != 2 {
		t.Errorf("%q, %q, %v", zone, spine, s.nodesBelow(zone, spine))
	}
	if len(s.metrics.unlabelled.names) != 2 {
		t.Error("two nodes lack labels")
	}
	s.removeNode("a")
	s.setNode(node("b", "s", "l", "4", "100"))
	if len(s.metrics.unlabelled.names) != 0 {
		t.Error("no node lacks labels any more")
	}
}

func TestProfilesShareOneState(t *testing.T) {
	f := newFixture(t, "", fabric("4", "0"))
	build := NewFactory(metrics.NewKubeRegistry().MustRegister)
	first, err := build(f.ctx, nil, f.fwk)
	if err != nil {
		t.Fatal(err)
	}
	if second, err := build(f.ctx, nil, f.fwk); err != nil || first != second {
		t.Errorf("%v, %v", second, err)
	}
	if _, err := build(f.ctx, unknown(`{"growth": 2}`), f.fwk); err == nil || !strings.Contains(err.Error(), "must be equal in all profiles") {
		t.Error(err)
	}
	if _, err := build(f.ctx, unknown(`{"growth": 0}`), f.fwk); err == nil || !strings.Contains(err.Error(), "arguments of plugin RowmillTopology: growth") {
		t.Error(err)
	}
}
