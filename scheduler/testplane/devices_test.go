package testplane

import (
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rowmill.io/scheduler/placement/kube"
)

// Table 3 of the paper in Kubernetes: 6 nodes with 8 GPUs take 144 dense workers on partitions 2g.20gb, three per GPU. The
// 145th waits, and runs when one of them goes. Dynamic Resource Allocation picks the partitions.
func TestSixNodesTakeTheWorkersOfTable3(t *testing.T) {
	p := startPlane(t, nil, nil)
	ctx := t.Context()
	var nodes []*v1.Node
	for n := range 6 {
		nodes = append(nodes, Node(fmt.Sprint("gpu-", n), "s", "l", Resources{"cpu": "128", "memory": "1Ti", kube.NICResource: "400"}))
	}
	must(t, CreateNodes(ctx, p.Client, nodes))
	must(t, CreateMIGClass(ctx, p.Client, "mig-2g20gb", "2g.20gb"))
	for _, node := range nodes {
		must(t, PublishPartitions(ctx, p.Client, node.Name))
	}
	var pods []*v1.Pod
	// The table's 140 workers, and four more of the third service, which fill the last GPUs.
	for _, line := range []struct {
		service string
		count   int
		cores   string
	}{{"product-a", 45, "4"}, {"product-b", 40, "4"}, {"product-c", 59, "2"}} {
		for i := range line.count {
			pods = append(pods, Claim(Pod(fmt.Sprintf("%s-%02d", line.service, i), line.service, "dense", 0, Resources{"cpu": line.cores, kube.NICResource: "10"}), "mig-2g20gb"))
		}
	}
	must(t, CreatePods(ctx, p.Client, pods))
	startScheduler(t, p, "scheduler", exampleConfiguration(t))
	bound, err := WaitBound(ctx, p.Client, len(pods), bindLimit)
	must(t, err)
	checkRules(t, p, bound)
	checkPartitions(t, p, len(pods))

	must(t, CreatePods(ctx, p.Client, []*v1.Pod{Claim(Pod("one-more", "product-c", "dense", 0, Resources{"cpu": "2"}), "mig-2g20gb")}))
	t.Log(message(ctx, t, p, "one-more", "cannot allocate all claims", "6 rejected by none of these rules"))
	remove(t, p, "product-a-00")
	_, took := waitForPod(ctx, t, p, "one-more", 30*time.Second)
	t.Logf("bound %v after a worker went", took.Round(time.Millisecond))
	checkPartitions(t, p, len(pods))
}

// A GPU and a NIC below one PCIe root: pods prefer nodes where Dynamic Resource Allocation gives them such a pair, until
// there is none, although a node with distant devices is emptier.
func TestPodsPreferNodesWithDevicesBelowOneRoot(t *testing.T) {
	p := startPlane(t, nil, nil)
	ctx := t.Context()
	capacity := Resources{"cpu": "64", "memory": "256Gi"}
	must(t, CreateNodes(ctx, p.Client, []*v1.Node{Node("far", "s", "l", capacity), Node("near", "s", "l", capacity)}))
	must(t, CreateDriverClasses(ctx, p.Client, "pair", GPUDriver, NICDriver))
	roots := map[string]string{"d-0": "pci0000:00", "d-1": "pci0000:80"}
	must(t, PublishDevices(ctx, p.Client, "near", GPUDriver, roots))
	must(t, PublishDevices(ctx, p.Client, "near", NICDriver, roots))
	must(t, PublishDevices(ctx, p.Client, "far", GPUDriver, map[string]string{"d-0": "pci0000:00"}))
	must(t, PublishDevices(ctx, p.Client, "far", NICDriver, map[string]string{"d-0": "pci0000:80"}))
	startScheduler(t, p, "scheduler", exampleConfiguration(t))
	create(t, p, on("near", Pod("load", "load", "cpu", 0, Resources{"cpu": "48"})))
	for i, want := range []string{"near", "near", "far"} {
		name := fmt.Sprint("x-", i)
		create(t, p, Claim(Pod(name, "x", "dense", 0, Resources{"cpu": "2"}), "pair"))
		if node, _ := waitForPod(ctx, t, p, name, bindLimit); node != want {
			t.Errorf("pod %s is on node %s, want %s", name, node, want)
		}
	}
	claims, err := p.Client.ResourceV1().ResourceClaims(Namespace).List(ctx, metav1.ListOptions{})
	must(t, err)
	for i := range claims.Items {
		devices := claims.Items[i].Status.Allocation.Devices.Results
		if len(devices) != 2 || devices[0].Pool == "near" && devices[0].Device != devices[1].Device {
			t.Errorf("claim %s holds %v", claims.Items[i].Name, devices)
		}
	}
}

// checkPartitions requires that claims hold a number of partitions that do not overlap.
func checkPartitions(t *testing.T, p *Plane, want int) {
	t.Helper()
	claims, err := p.Client.ResourceV1().ResourceClaims(Namespace).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	held := map[string]string{}
	count := 0
	for i := range claims.Items {
		claim := &claims.Items[i]
		if claim.Status.Allocation == nil || claim.DeletionTimestamp != nil {
			continue
		}
		for _, result := range claim.Status.Allocation.Devices.Results {
			var gpu, start int
			if _, err := fmt.Sscanf(result.Device, "gpu-%d-mig-2g20gb-%d", &gpu, &start); err != nil {
				t.Fatalf("claim %s holds device %q: %v", claim.Name, result.Device, err)
			}
			count++
			for slice := start; slice < start+2; slice++ {
				at := fmt.Sprintf("node %s, GPU %d, slice %d", result.Pool, gpu, slice)
				if other := held[at]; other != "" {
					t.Errorf("%s is held by %s and %s", at, other, claim.Name)
				}
				held[at] = claim.Name
			}
		}
	}
	if count != want {
		t.Errorf("%d partitions are held, want %d", count, want)
	}
}
