package testplane

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rowmill.io/scheduler/placement/kube"
)

// Pods that wait: their events name each rule, they are bound soon after room appears, they preempt pods of lower
// priority, and nodes that go or move change where they can run.

func TestWaitingPods(t *testing.T) {
	p := startPlane(t, nil, nil)
	startScheduler(t, p, "scheduler", exampleConfiguration(t))
	capacity := Resources{"cpu": "8", "memory": "32Gi", kube.NICResource: "200"}
	var nodes []*v1.Node
	for _, spine := range []string{"a", "b", "c"} {
		for n := range 4 {
			nodes = append(nodes, Node(fmt.Sprint(spine, n), spine, fmt.Sprint("l", n/2), capacity))
		}
	}
	must(t, CreateNodes(t.Context(), p.Client, nodes))
	for _, class := range []schedulingv1.PriorityClass{
		{ObjectMeta: metav1.ObjectMeta{Name: "online"}, Value: 1000}, {ObjectMeta: metav1.ObjectMeta{Name: "offline"}, Value: 10},
	} {
		_, err := p.Client.SchedulingV1().PriorityClasses().Create(t.Context(), &class, metav1.CreateOptions{})
		must(t, err)
	}
	t.Run("bad arguments", func(t *testing.T) { badArgumentsEndTheScheduler(t, p) })
	t.Run("events name each rule", func(t *testing.T) { eventsNameEachRule(t, p) })
	t.Run("room appears", func(t *testing.T) { roomAppears(t, p) })
	t.Run("preemption", func(t *testing.T) { servicePreemptsOfflinePod(t, p) })
	t.Run("nodes go and move", func(t *testing.T) { nodesGoAndMove(t, p) })
}

func badArgumentsEndTheScheduler(t *testing.T, p *Plane) {
	scheduler := startScheduler(t, p, "bad-arguments", exampleConfiguration(t, "growth: 1.3", "growth: 0.5", "spineRule: Hard", "spineRule: Soft"))
	must(t, Wait(t.Context(), "the scheduler ends", bindLimit, func() (bool, error) { return !scheduler.Running(), nil }))
	log := tail(scheduler.Log)
	for _, says := range []string{"growth: Invalid value: 0.5", "spineRule: Unsupported value: "} {
		if !strings.Contains(log, says) {
			t.Errorf("the log does not say %q:\n%s", says, log)
		}
	}
}

// create creates pods and waits until all of them are bound.
func create(t *testing.T, p *Plane, pods ...*v1.Pod) {
	t.Helper()
	must(t, CreatePods(t.Context(), p.Client, pods))
	for _, pod := range pods {
		waitForPod(t.Context(), t, p, pod.Name, bindLimit)
	}
}

// clean deletes all pods.
func clean(t *testing.T, p *Plane) {
	t.Helper()
	now := int64(0)
	must(t, p.Client.CoreV1().Pods(Namespace).DeleteCollection(t.Context(), metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{}))
	must(t, Wait(t.Context(), "all pods are gone", bindLimit, func() (bool, error) {
		_, pods, err := Bound(t.Context(), p.Client)
		return len(pods) == 0, err
	}))
}

func remove(t *testing.T, p *Plane, pod string) {
	t.Helper()
	now := int64(0)
	must(t, p.Client.CoreV1().Pods(Namespace).Delete(t.Context(), pod, metav1.DeleteOptions{GracePeriodSeconds: &now}))
}

// on makes a pod run on one node.
func on(node string, pod *v1.Pod) *v1.Pod {
	pod.Spec.NodeSelector = map[string]string{}
	pod.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{
		NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchFields: []v1.NodeSelectorRequirement{
			{Key: "metadata.name", Operator: v1.NodeSelectorOpIn, Values: []string{node}},
		}}},
	}}}
	return pod
}

// eventsNameEachRule fills the four nodes below a spine so that each has another reason.
func eventsNameEachRule(t *testing.T, p *Plane) {
	fill := func(node, name, cores, share string) *v1.Pod {
		return on(node, Pod(name, name, "cpu", 0, Resources{"cpu": cores, kube.NICResource: share}))
	}
	create(t, p, on("a0", Pod("x-0", "x", "cpu", 1, Resources{"cpu": "1"})), on("a3", Pod("x-1", "x", "cpu", 1, Resources{"cpu": "1"})))
	// a2 has no cores. a1 has 40 % on each of two NICs. The leaf of a0 and a1 has 40 % of 320 % left.
	create(t, p, fill("a2", "c", "8", "0"), fill("a1", "d", "1", "60"), fill("a1", "e", "1", "60"), fill("a0", "f", "1", "80"), fill("a0", "g", "1", "80"))
	must(t, CreatePods(t.Context(), p.Client, []*v1.Pod{Pod("x-2", "x", "cpu", 1, Resources{"cpu": "4", kube.NICResource: "70"})}))
	text := message(t.Context(), t, p, "x-2",
		"0/12 nodes are available", "(rule density)", "(rule nic)", "(rule uplink)", "Insufficient cpu", "by rule spine", "by rule cores", "nearest: node")
	t.Log(text)
	clean(t, p)

	// Three groups of a service take the three spines, so the fourth finds none.
	group := func(number int) *v1.Pod {
		pod := Pod(fmt.Sprint("group-", number), "grouped", "cpu", 0, Resources{"cpu": "1"})
		pod.Annotations[kube.GroupAnnotation] = fmt.Sprint(number)
		return pod
	}
	create(t, p, group(0), group(1), group(2))
	_, pods, err := Bound(t.Context(), p.Client)
	must(t, err)
	checkRules(t, p, pods)
	must(t, CreatePods(t.Context(), p.Client, []*v1.Pod{group(3)}))
	message(t.Context(), t, p, "group-3", "(rule group)", "12 rejected by rule group")
	clean(t, p)
}

func roomAppears(t *testing.T, p *Plane) {
	for i := range 4 {
		create(t, p, Pod(fmt.Sprint("x-", i), "x", "cpu", 1, Resources{"cpu": "1"}))
	}
	must(t, CreatePods(t.Context(), p.Client, []*v1.Pod{Pod("x-4", "x", "cpu", 1, Resources{"cpu": "1"})}))
	message(t.Context(), t, p, "x-4", "(rule density)")
	remove(t, p, "x-2")
	node, took := waitForPod(t.Context(), t, p, "x-4", 10*time.Second)
	t.Logf("bound to %s %v after room appeared", node, took.Round(time.Millisecond))
	_, pods, err := Bound(t.Context(), p.Client)
	must(t, err)
	checkRules(t, p, pods)
	clean(t, p)
}

func servicePreemptsOfflinePod(t *testing.T, p *Plane) {
	var offline []*v1.Pod
	for i := range 12 {
		pod := Pod(fmt.Sprint("offline-", i), "", "", 0, Resources{"cpu": "7", kube.NICResource: "90"})
		pod.Labels = nil
		pod.Spec.PriorityClassName = "offline"
		offline = append(offline, pod)
	}
	create(t, p, offline...)
	var service []*v1.Pod
	for i := range 3 {
		pod := Pod(fmt.Sprint("x-", i), "x", "cpu", 0, Resources{"cpu": "6", kube.NICResource: "60"})
		pod.Spec.PriorityClassName = "online"
		service = append(service, pod)
	}
	create(t, p, service...)
	_, pods, err := Bound(t.Context(), p.Client)
	must(t, err)
	left := 0
	for i := range pods {
		if strings.HasPrefix(pods[i].Name, "offline") {
			left++
		}
	}
	t.Logf("%d of 12 offline pods are left", left)
	if left != 9 {
		t.Errorf("three pods of a service preempted %d offline pods", 12-left)
	}
	checkRules(t, p, pods)
	clean(t, p)
}

func nodesGoAndMove(t *testing.T, p *Plane) {
	create(t, p, on("a0", Pod("x-0", "x", "cpu", 0, Resources{"cpu": "1"})))
	// The node goes, and its pod with it: the service has no spine any more.
	must(t, p.Client.CoreV1().Nodes().Delete(t.Context(), "a0", metav1.DeleteOptions{}))
	remove(t, p, "x-0")
	create(t, p, on("c0", Pod("x-1", "x", "cpu", 0, Resources{"cpu": "1"})))
	create(t, p, Pod("x-2", "x", "cpu", 0, Resources{"cpu": "1"}))
	_, pods, err := Bound(t.Context(), p.Client)
	must(t, err)
	checkRules(t, p, pods)

	// A node with one of three pods moves below another spine: the service grows where two of them are.
	create(t, p, on("b0", Pod("y-0", "y", "cpu", 0, Resources{"cpu": "1"})))
	create(t, p, on("b1", Pod("y-1", "y", "cpu", 0, Resources{"cpu": "1"})))
	create(t, p, on("b1", Pod("y-2", "y", "cpu", 0, Resources{"cpu": "1"})))
	_, err = p.Kubectl(t.Context(), "label", "--overwrite", "node", "b0", kube.DefaultLabels.Spine+"=a")
	must(t, err)
	must(t, CreatePods(t.Context(), p.Client, []*v1.Pod{on("b0", Pod("y-3", "y", "cpu", 0, Resources{"cpu": "1"}))}))
	message(t.Context(), t, p, "y-3", "by rule spine")
	create(t, p, Pod("y-4", "y", "cpu", 0, Resources{"cpu": "1"}))
	if node, _ := waitForPod(t.Context(), t, p, "y-4", bindLimit); node[0] != 'b' || node == "b0" {
		t.Errorf("the service grows on node %s", node)
	}
	// The node moves back, and takes the pod that waits for it.
	_, err = p.Kubectl(t.Context(), "label", "--overwrite", "node", "b0", kube.DefaultLabels.Spine+"=b")
	must(t, err)
	waitForPod(t.Context(), t, p, "y-3", 10*time.Second)
	_, pods, err = Bound(t.Context(), p.Client)
	must(t, err)
	checkRules(t, p, pods)
	clean(t, p)
}
