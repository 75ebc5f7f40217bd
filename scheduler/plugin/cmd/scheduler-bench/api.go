package main

import (
	"fmt"
	"maps"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// api is the fake API of client-go, which binds pods as the real one does.
type api struct {
	client *fake.Clientset
	// done is closed when all waiting pods are bound.
	done chan struct{}

	mu    sync.Mutex
	left  int
	bound map[string]string
}

func newAPI(c *cluster) *api {
	var objects []runtime.Object
	for _, node := range c.nodes {
		objects = append(objects, node)
	}
	a := &api{done: make(chan struct{}), bound: map[string]string{}}
	for _, pod := range c.pods {
		objects = append(objects, pod)
		if pod.Spec.NodeName == "" {
			a.left++
		}
	}
	a.client = fake.NewClientset(objects...)
	a.client.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.GetSubresource() != "binding" {
			return false, nil, nil
		}
		return true, nil, a.bind(action.(clienttesting.CreateAction).GetObject().(*v1.Binding))
	})
	return a
}

func (a *api) bind(binding *v1.Binding) error {
	tracker, pods := a.client.Tracker(), v1.SchemeGroupVersion.WithResource("pods")
	object, err := tracker.Get(pods, binding.Namespace, binding.Name)
	if err != nil {
		return err
	}
	pod := object.(*v1.Pod).DeepCopy()
	if pod.Spec.NodeName != "" {
		return fmt.Errorf("pod %s is bound to node %s already", pod.Name, pod.Spec.NodeName)
	}
	pod.Spec.NodeName = binding.Target.Name
	if err := tracker.Update(pods, pod, pod.Namespace, metav1.UpdateOptions{}); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.bound[pod.Name] = pod.Spec.NodeName
	if a.left--; a.left == 0 {
		close(a.done)
	}
	return nil
}

func (a *api) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.bound)
}

// bindings returns the nodes of the pods that were bound during the run.
func (a *api) bindings() map[string]string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.bound)
}
