// Command scheduler-demo starts a real control plane with 48 nodes, places two services, prints where each pod went and by
// which rule, and what a service that is too large lacks.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rowmill.io/scheduler/placement/kube"
	"rowmill.io/scheduler/testplane"
)

const limit = time.Minute

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: scheduler-demo CONFIGURATION.yaml")
		os.Exit(2)
	}
	if err := run(context.Background(), os.Stdout, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "scheduler-demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, configuration string) (failed error) {
	text, err := os.ReadFile(configuration)
	if err != nil {
		return err
	}
	folder, err := os.MkdirTemp("", "scheduler-demo-")
	if err != nil {
		return err
	}
	defer func() { failed = errors.Join(failed, os.RemoveAll(folder)) }()
	fmt.Fprintln(out, "start etcd, kube-apiserver, kube-controller-manager and rowmill-scheduler")
	p, err := testplane.Start(testplane.Options{Folder: folder})
	if err != nil {
		return err
	}
	defer func() { failed = errors.Join(failed, p.Stop()) }()
	nodes := fabric()
	if err := testplane.CreateNodes(ctx, p.Client, nodes); err != nil {
		return err
	}
	scheduler, err := p.StartScheduler("scheduler", string(text))
	if err != nil {
		return err
	}
	defer func() { failed = errors.Join(failed, scheduler.Stop()) }()
	fmt.Fprintf(out, "%d nodes: 2 spines, 3 leaves below each, 8 nodes below each leaf, 2 of them with GPUs\n", len(nodes))

	total := 0
	for _, one := range []worker{
		{"search", "cpu", 16, 0, testplane.Resources{"cpu": "12", kube.NICResource: "25"}},
		{"search", "dense", 8, 2, testplane.Resources{"cpu": "4", kube.NICResource: "50", kube.GPUResource: "1"}},
		{"feed", "cpu", 20, 0, testplane.Resources{"cpu": "12", kube.NICResource: "25"}},
		{"feed", "dense", 6, 0, testplane.Resources{"cpu": "4", kube.NICResource: "50", kube.GPUResource: "1"}},
	} {
		if err := deploy(ctx, p, one); err != nil {
			return err
		}
		total += one.count
	}
	pods, err := testplane.WaitBound(ctx, p.Client, total, limit)
	if err != nil {
		return err
	}
	order, err := scheduler.Attempts()
	if err != nil {
		return err
	}
	explain(out, order, pods, nodes)

	fmt.Fprintln(out, "\na service that is too large: 12 dense workers with one per node; each spine has 6 nodes with GPUs")
	if err := deploy(ctx, p, worker{"large", "dense", 12, 1, testplane.Resources{"cpu": "4", kube.NICResource: "25", kube.GPUResource: "1"}}); err != nil {
		return err
	}
	return printEvent(ctx, out, p)
}

// fabric makes the nodes.
func fabric() []*v1.Node {
	var nodes []*v1.Node
	for spine := range 2 {
		for leaf := range 3 {
			for n := range 8 {
				capacity := testplane.Resources{"cpu": "48", "memory": "256Gi", kube.NICResource: "100"}
				if n < 2 {
					capacity = testplane.Resources{"cpu": "64", "memory": "512Gi", kube.NICResource: "400", kube.GPUResource: "4"}
				}
				name := fmt.Sprintf("node-%d-%d-%d", spine, leaf, n)
				nodes = append(nodes, testplane.Node(name, fmt.Sprint("spine-", spine), fmt.Sprint("leaf-", leaf), capacity))
			}
		}
	}
	return nodes
}

// worker is one Deployment of a service.
type worker struct {
	service, role  string
	count, density int
	request        testplane.Resources
}

func deploy(ctx context.Context, p *testplane.Plane, w worker) error {
	name, count := w.service+"-"+w.role, int32(w.count)
	pod := testplane.Pod(name, w.service, w.role, w.density, w.request)
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: testplane.Namespace},
		Spec: appsv1.DeploymentSpec{
			Replicas: &count,
			Selector: &metav1.LabelSelector{MatchLabels: pod.Labels},
			Template: v1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels, Annotations: pod.Annotations},
				Spec:       pod.Spec,
			},
		},
	}
	_, err := p.Client.AppsV1().Deployments(testplane.Namespace).Create(ctx, deployment, metav1.CreateOptions{})
	return err
}

// explain prints each placement in the order of decisions.
func explain(out io.Writer, order []string, pods []v1.Pod, nodes []*v1.Node) {
	at, leafOf := map[string]*v1.Pod{}, map[string]string{}
	for i := range pods {
		at[pods[i].Namespace+"/"+pods[i].Name] = &pods[i]
	}
	for _, node := range nodes {
		leafOf[node.Name] = node.Labels[kube.DefaultLabels.Spine] + " " + node.Labels[kube.DefaultLabels.Leaf]
	}
	seen := map[string]map[string]int{}
	for _, name := range order {
		pod := at[name]
		if pod == nil {
			continue
		}
		delete(at, name)
		service, leaf := pod.Labels[kube.ServiceLabel], leafOf[pod.Spec.NodeName]
		rule := fmt.Sprintf("leaf with %d pods of the service", seen[service][leaf])
		switch {
		case seen[service] == nil:
			seen[service] = map[string]int{}
			rule = "first pod: tightest spine with room for the service, roomiest leaf"
		case seen[service][leaf] == 0:
			rule = "next leaf below the spine: the roomiest"
		}
		seen[service][leaf]++
		fmt.Fprintf(out, "  %-32s %-13s %s  %s\n", pod.Name, pod.Spec.NodeName, leaf, rule)
	}
}

// printEvent prints why a pod of the service named large waits.
func printEvent(ctx context.Context, out io.Writer, p *testplane.Plane) error {
	return testplane.Wait(ctx, "an event of a pod that waits", limit, func() (bool, error) {
		events, err := p.Client.CoreV1().Events(testplane.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=FailedScheduling"})
		if err != nil {
			return false, err
		}
		for i := range events.Items {
			e := &events.Items[i]
			if strings.HasPrefix(e.InvolvedObject.Name, "large-") && strings.Contains(e.Message, "rule density") {
				fmt.Fprintf(out, "  %s waits: %s\n", e.InvolvedObject.Name, e.Message)
				return true, nil
			}
		}
		return false, nil
	})
}
