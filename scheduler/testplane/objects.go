package testplane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"rowmill.io/scheduler/placement/kube"
)

// Namespace is where all pods of tests are.
const Namespace = metav1.NamespaceDefault

// writers is the number of concurrent requests of Each.
const writers = 16

// Resources are amounts by name of the resource, as in manifests.
type Resources map[v1.ResourceName]string

func (r Resources) list() v1.ResourceList {
	list := v1.ResourceList{}
	for name, amount := range r {
		list[name] = resource.MustParse(amount)
	}
	return list
}

// Node makes a node below a spine and a leaf.
func Node(name, spine, leaf string, capacity Resources) *v1.Node {
	list := capacity.list()
	list[v1.ResourcePods] = resource.MustParse("110")
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:   name,
			Labels: map[string]string{kube.DefaultLabels.Spine: spine, kube.DefaultLabels.Leaf: leaf},
		},
		Status: v1.NodeStatus{
			Capacity: list, Allocatable: list,
			Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}},
		},
	}
}

// Pod makes a pod of a service with one container. Density 0 sets no limit.
func Pod(name, service, role string, density int, request Resources) *v1.Pod {
	none := int64(0)
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: Namespace, Annotations: map[string]string{},
			Labels: map[string]string{kube.ServiceLabel: service, kube.RoleLabel: role},
		},
		Spec: v1.PodSpec{
			TerminationGracePeriodSeconds: &none,
			Containers: []v1.Container{{
				Name: "worker", Image: "none",
				// Extended resources need equal limits.
				Resources: v1.ResourceRequirements{Requests: request.list(), Limits: request.list()},
			}},
		},
	}
	if density > 0 {
		pod.Annotations[kube.DensityAnnotation] = fmt.Sprint(density)
	}
	return pod
}

// Each calls a function for 0 to count-1, several at a time, and joins the errors.
func Each(count int, call func(int) error) error {
	var mu sync.Mutex
	var failed error
	var wait sync.WaitGroup
	next := make(chan int)
	for range writers {
		wait.Go(func() {
			for i := range next {
				if err := call(i); err != nil {
					mu.Lock()
					failed = errors.Join(failed, err)
					mu.Unlock()
				}
			}
		})
	}
	for i := range count {
		next <- i
	}
	close(next)
	wait.Wait()
	return failed
}

// CreateNodes creates nodes. Their status is a request of its own, as for kubelets.
func CreateNodes(ctx context.Context, client kubernetes.Interface, nodes []*v1.Node) error {
	return Each(len(nodes), func(i int) error {
		made, err := client.CoreV1().Nodes().Create(ctx, nodes[i], metav1.CreateOptions{})
		if err != nil {
			return err
		}
		made.Status = nodes[i].Status
		_, err = client.CoreV1().Nodes().UpdateStatus(ctx, made, metav1.UpdateOptions{})
		return err
	})
}

// CreatePods creates pods.
func CreatePods(ctx context.Context, client kubernetes.Interface, pods []*v1.Pod) error {
	return Each(len(pods), func(i int) error {
		_, err := client.CoreV1().Pods(pods[i].Namespace).Create(ctx, pods[i], metav1.CreateOptions{})
		return err
	})
}

// Wait polls until a condition holds. The error names what was waited for and the limit.
func Wait(ctx context.Context, what string, limit time.Duration, holds func() (bool, error)) error {
	deadline := time.Now().Add(limit)
	for {
		done, err := holds()
		if err != nil || done {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: not within %v", what, limit)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Bound lists the pods of the test's namespace and counts those with a node.
func Bound(ctx context.Context, client kubernetes.Interface) (bound int, pods []v1.Pod, err error) {
	list, err := client.CoreV1().Pods(Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, nil, err
	}
	pods = slices.DeleteFunc(list.Items, func(p v1.Pod) bool { return p.DeletionTimestamp != nil })
	for i := range pods {
		if pods[i].Spec.NodeName != "" {
			bound++
		}
	}
	return bound, pods, nil
}

// WaitBound waits until a number of pods have a node.
func WaitBound(ctx context.Context, client kubernetes.Interface, want int, limit time.Duration) ([]v1.Pod, error) {
	var last []v1.Pod
	count := 0
	err := Wait(ctx, fmt.Sprintf("%d pods are bound", want), limit, func() (bool, error) {
		var err error
		count, last, err = Bound(ctx, client)
		return count >= want, err
	})
	if err != nil {
		return last, fmt.Errorf("%w; %d of %d pods are bound", err, count, len(last))
	}
	return last, nil
}
