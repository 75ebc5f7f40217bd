package testplane

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	v1 "k8s.io/api/core/v1"

	"rowmill.io/scheduler/placement/kube"
)

// 2,000 pods of 20 services on 500 nodes, through a real API server: every rule holds in the API objects, and every
// decision is among the best, given those before it.

// fabric makes spines with leaves of ten nodes, three of them with GPUs.
func fabric(spines, leaves int) []*v1.Node {
	var nodes []*v1.Node
	for spine := range spines {
		for leaf := range leaves {
			for n := range 10 {
				name := fmt.Sprintf("%d-%02d-%d", spine, leaf, n)
				capacity := Resources{"cpu": "32", "memory": "128Gi", kube.NICResource: "200"}
				if n < 3 {
					capacity = Resources{"cpu": "64", "memory": "512Gi", kube.NICResource: "400", kube.GPUResource: "8"}
				}
				nodes = append(nodes, Node(name, fmt.Sprint("s", spine), fmt.Sprint("l", leaf), capacity))
			}
		}
	}
	return nodes
}

// workers makes the pods of services: seven of ten are CPU workers. The shares of NICs differ by service. The order is
// random with a fixed seed.
func workers(services, each int) []*v1.Pod {
	var pods []*v1.Pod
	for s := range services {
		service := fmt.Sprintf("service-%02d", s)
		share := []string{"10", "25", "50"}[s%3]
		for i := range each {
			name := fmt.Sprintf("%s-%03d", service, i)
			if i%10 < 7 {
				pods = append(pods, Pod(name, service, "cpu", 6, Resources{"cpu": "3", "memory": "4Gi", kube.NICResource: share}))
			} else {
				pods = append(pods, Pod(name, service, "dense", 4, Resources{"cpu": "2", "memory": "8Gi", kube.NICResource: "25", kube.GPUResource: "1"}))
			}
		}
	}
	rand.New(rand.NewPCG(1, 0)).Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
	return pods
}

func TestTwoThousandPodsKeepEveryRule(t *testing.T) {
	p := startPlane(t, nil, nil)
	ctx := t.Context()
	pods := workers(20, 100)
	must(t, CreateNodes(ctx, p.Client, fabric(5, 10)))
	must(t, CreatePods(ctx, p.Client, pods))
	scheduler := startScheduler(t, p, "scheduler", exampleConfiguration(t, "    plugins:\n", onlyOurScore))
	bound, err := WaitBound(ctx, p.Client, len(pods), bindLimit)
	must(t, err)
	checkRules(t, p, bound)

	text, err := p.Kubectl(ctx, "get", "nodes,pods", "-A", "-o", "json")
	must(t, err)
	snapshot, err := kube.Read(bytes.NewReader(text), kube.DefaultLabels)
	must(t, err)
	order, err := scheduler.Attempts()
	must(t, err)
	if len(order) != len(pods) {
		t.Fatalf("%d attempts for %d pods: some pods were turned away, so the order of decisions is not known", len(order), len(pods))
	}
	best, others, err := Replay(snapshot, order)
	must(t, err)
	t.Logf("%d of %d decisions are among the best", best, len(order))
	for _, other := range others {
		t.Error(other)
	}
}
