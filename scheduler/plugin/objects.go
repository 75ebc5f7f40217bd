package plugin

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"rowmill.io/scheduler/placement"
	"rowmill.io/scheduler/placement/kube"
)

const mebibyte = 1 << 20

// belongs reports whether a pod belongs to a service.
func belongs(pod *v1.Pod) bool {
	return pod.Labels[kube.ServiceLabel] != ""
}

// owner is the controller that makes pods; the zero value is none.
type owner struct{ namespace, kind, name string }

func ownerOf(pod *v1.Pod) owner {
	if by := metav1.GetControllerOf(pod); by != nil {
		return owner{pod.Namespace, by.Kind, by.Name}
	}
	return owner{}
}

// instanceOf reads what a pod requests and the service to which it belongs. With an error, the result has the pod's
// resources, and is a service of its own, so that a running pod can be counted.
func instanceOf(pod *v1.Pod) (placement.Instance, error) {
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	gpus, nic := requests[kube.GPUResource], requests[kube.NICResource]
	in := placement.Instance{
		Name: string(pod.UID),
		Resources: placement.Resources{
			Cores:  requests.Cpu().MilliValue(),
			Memory: requests.Memory().Value() / mebibyte,
			Disk:   requests.StorageEphemeral().Value() / mebibyte,
		},
		GPUs: int(gpus.Value()),
		NIC:  int(nic.Value()),
	}
	if in.GPUs > 0 || len(pod.Spec.ResourceClaims) > 0 {
		in.Role = placement.RoleWhole
	}
	alone := in
	alone.Service, alone.NIC = "pod "+in.Name, min(in.NIC, 100)
	if !belongs(pod) {
		return alone, nil
	}
	if in.NIC > 100 {
		return alone, fmt.Errorf("resource %s must be in [0, 100], the share of one NIC, got %d", kube.NICResource, in.NIC)
	}
	if err := kube.Describe(&in, pod.Labels, pod.Annotations); err != nil {
		return alone, err
	}
	return in, nil
}

// nodeOf reads a node. Devices have unknown positions: claims, not this plugin, choose them.
func nodeOf(node *v1.Node, args *Args) placement.Node {
	free := node.Status.Allocatable
	gpus, nic := free[kube.GPUResource], free[kube.NICResource]
	n := placement.Node{
		Name: node.Name, Zone: node.Labels[args.ZoneLabel], Spine: node.Labels[args.SpineLabel], Leaf: node.Labels[args.LeafLabel],
		Resources: placement.Resources{
			Cores:  free.Cpu().MilliValue(),
			Memory: free.Memory().Value() / mebibyte,
			Disk:   free.StorageEphemeral().Value() / mebibyte,
		},
	}
	for range gpus.Value() {
		n.GPUs = append(n.GPUs, placement.GPU{Locality: placement.Anywhere})
	}
	for range nic.Value() / 100 {
		n.NICs = append(n.NICs, placement.NIC{Locality: placement.Anywhere})
	}
	return n
}
