package testplane

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"rowmill.io/scheduler/placement/kube"
)

// The checker must find each broken rule, or the tests of the control plane prove nothing.
func TestCheckerFindsEachBrokenRule(t *testing.T) {
	node := func(name, spine, leaf string) v1.Node {
		return *Node(name, spine, leaf, Resources{"cpu": "8", kube.NICResource: "200"})
	}
	nodes := []v1.Node{node("a", "s", "l"), node("b", "s", "l"), node("c", "other", "l")}
	count := 0
	pod := func(on, service, cores, share string, density int, group string) v1.Pod {
		count++
		p := Pod(fmt.Sprint("p", count), service, "cpu", density, Resources{"cpu": cores, kube.NICResource: share})
		p.Annotations[kube.GroupAnnotation], p.Spec.NodeName = group, on
		return *p
	}
	for _, one := range []struct {
		says string
		pods []v1.Pod
	}{
		{"", []v1.Pod{pod("a", "x", "4", "100", 2, "0"), pod("a", "x", "4", "60", 0, "0"), pod("b", "x", "8", "40", 0, "0"), pod("c", "x", "1", "0", 0, "1"), pod("", "x", "99", "0", 0, "")}},
		{"pods request 9000 of cpu, it has 8000", []v1.Pod{pod("a", "x", "4", "0", 0, ""), pod("a", "y", "5", "0", 0, "")}},
		{"shares [70 70 60] do not fit on 2 NICs", []v1.Pod{pod("a", "x", "1", "70", 0, ""), pod("a", "x", "1", "70", 0, ""), pod("a", "x", "1", "60", 0, "")}},
		{"2 pods of service x, density 1", []v1.Pod{pod("a", "x", "1", "0", 1, ""), pod("a", "x", "1", "0", 0, "")}},
		{"below spine /other, others below /s", []v1.Pod{pod("c", "x", "1", "0", 0, ""), pod("a", "x", "1", "0", 0, "")}},
		{"groups \"0\" and \"1\" of service x are below spine /s", []v1.Pod{pod("a", "x", "1", "0", 0, "0"), pod("b", "x", "1", "0", 0, "1")}},
		{"pods use 330 % of a NIC, the uplink admits 320", []v1.Pod{pod("a", "x", "1", "100", 0, ""), pod("a", "x", "1", "100", 0, ""), pod("b", "x", "1", "90", 0, ""), pod("b", "x", "1", "40", 0, "")}},
		{"node \"gone\", which does not exist", []v1.Pod{pod("gone", "x", "1", "0", 0, "")}},
	} {
		found := strings.Join(Check(nodes, one.pods), "\n")
		if one.says == "" && found != "" || !strings.Contains(found, one.says) {
			t.Errorf("want %q, got %q", one.says, found)
		}
	}
	if !deal([]int{60, 60, 40, 40}, make([]int, 2)) || deal([]int{60, 60, 50}, make([]int, 2)) || deal([]int{10}, nil) {
		t.Error("shares are dealt to NICs wrongly")
	}
}

func TestMissingProgramsAreNamed(t *testing.T) {
	t.Setenv(programsVariable, "")
	if _, err := Start(Options{Folder: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "ROWMILL_KUBE must name the folder") {
		t.Error(err)
	}
	t.Setenv(programsVariable, t.TempDir())
	if _, err := Start(Options{Folder: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "`make kube` builds the programs") {
		t.Error(err)
	}
}
