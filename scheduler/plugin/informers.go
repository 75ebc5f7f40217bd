package plugin

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

// follow keeps the state equal to the nodes and pods of informers.
func (s *state) follow(factory informers.SharedInformerFactory) ([]cache.InformerSynced, error) {
	sets, stateful := factory.Apps().V1().ReplicaSets(), factory.Apps().V1().StatefulSets()
	// Before the handlers, which call it: informers that run already call them at once.
	s.replicas = func(by owner) int {
		switch by.kind {
		case "ReplicaSet":
			if set, err := sets.Lister().ReplicaSets(by.namespace).Get(by.name); err == nil {
				return int(ptr.Deref(set.Spec.Replicas, 1))
			}
		case "StatefulSet":
			if set, err := stateful.Lister().StatefulSets(by.namespace).Get(by.name); err == nil {
				return int(ptr.Deref(set.Spec.Replicas, 1))
			}
		}
		// Other owners, and those that are gone, add no pods that could be foreseen.
		return 0
	}
	nodes, err := factory.Core().V1().Nodes().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { s.nodeEvent(object) },
		UpdateFunc: func(_, object any) { s.nodeEvent(object) },
		DeleteFunc: func(object any) {
			if node, ok := last(object).(*v1.Node); ok {
				s.removeNode(node.Name)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	pods, err := factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { s.podEvent(object) },
		UpdateFunc: func(_, object any) { s.podEvent(object) },
		DeleteFunc: func(object any) {
			if pod, ok := last(object).(*v1.Pod); ok {
				s.removePod(pod.UID)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	return []cache.InformerSynced{nodes.HasSynced, pods.HasSynced, sets.Informer().HasSynced, stateful.Informer().HasSynced}, nil
}

func (s *state) nodeEvent(object any) {
	if node, ok := object.(*v1.Node); ok {
		s.setNode(node)
	}
}

func (s *state) podEvent(object any) {
	if pod, ok := object.(*v1.Pod); ok {
		s.setPod(pod)
	}
}

// last returns the last known state of a deleted object whose deletion the informer missed.
func last(object any) any {
	if missed, ok := object.(cache.DeletedFinalStateUnknown); ok {
		return missed.Obj
	}
	return object
}
