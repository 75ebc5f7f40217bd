package testplane

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rowmill.io/scheduler/placement/kube"
)

// With the gates of pod groups, the scheduler reserves pods on trial and takes the reservations back. A gang that fits is
// bound below one spine; one that does not leaves no reservation behind.

func gang(name string, count int, topology bool, cores string) (*schedulingv1alpha2.PodGroup, []*v1.Pod) {
	group := &schedulingv1alpha2.PodGroup{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: Namespace},
		Spec: schedulingv1alpha2.PodGroupSpec{
			SchedulingPolicy: schedulingv1alpha2.PodGroupSchedulingPolicy{Gang: &schedulingv1alpha2.GangSchedulingPolicy{MinCount: int32(count)}},
		},
	}
	if topology {
		group.Spec.SchedulingConstraints = &schedulingv1alpha2.PodGroupSchedulingConstraints{
			Topology: []schedulingv1alpha2.TopologyConstraint{{Key: kube.DefaultLabels.Spine}},
		}
	}
	var pods []*v1.Pod
	for i := range count {
		pod := Pod(fmt.Sprintf("%s-%d", name, i), name, "cpu", 2, Resources{"cpu": cores, kube.NICResource: "25"})
		pod.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: &name}
		pods = append(pods, pod)
	}
	return group, pods
}

func TestPodGroupsReserveOnTrial(t *testing.T) {
	p := startPlane(t, []string{"GenericWorkload", "GangScheduling", "TopologyAwareWorkloadScheduling"}, []string{"scheduling.k8s.io/v1alpha2"})
	ctx := t.Context()
	var nodes []*v1.Node
	for spine := range 3 {
		for n := range 4 {
			nodes = append(nodes, Node(fmt.Sprintf("%d-%d", spine, n), fmt.Sprint("s", spine), fmt.Sprint("l", n/2), Resources{"cpu": "8", "memory": "32Gi", kube.NICResource: "200"}))
		}
	}
	must(t, CreateNodes(ctx, p.Client, nodes))
	startScheduler(t, p, "scheduler", exampleConfiguration(t))
	submit := func(name string, count int, topology bool, cores string) {
		t.Helper()
		group, pods := gang(name, count, topology, cores)
		_, err := p.Client.SchedulingV1alpha2().PodGroups(Namespace).Create(ctx, group, metav1.CreateOptions{})
		must(t, err)
		must(t, CreatePods(ctx, p.Client, pods))
	}
	// Nine pods of four cores do not fit on the four nodes below a spine: none of them may keep a reservation.
	submit("too-large", 9, false, "4")
	message(ctx, t, p, "too-large-0")
	submit("plain", 6, false, "3")
	submit("topology", 6, true, "3")
	bound, err := WaitBound(ctx, p.Client, 12, bindLimit)
	must(t, err)
	for i := range bound {
		if bound[i].Labels[kube.ServiceLabel] == "too-large" && bound[i].Spec.NodeName != "" {
			t.Errorf("pod %s of a gang that does not fit is bound", bound[i].Name)
		}
	}
	checkRules(t, p, bound)
	// All other room is free: a service fills a spine.
	for i := range 4 {
		create(t, p, Pod(fmt.Sprint("fills-", i), "fills", "cpu", 1, Resources{"cpu": "8", kube.NICResource: "50"}))
	}
}
