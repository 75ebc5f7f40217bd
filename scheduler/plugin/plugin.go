// Package plugin is RowmillTopology, a plugin of kube-scheduler that places pods of served models by the rules of package
// placement: below one spine switch, below few leaf switches, within limits per node, NIC and uplink.
//
// A pod belongs to a service if it has the label rowmill.io/service. All other pods are scheduled as without the plugin;
// only their requests are counted. Resources of nodes, devices and preemption are left to the plugins of Kubernetes.
//
// The plugin keeps its state in memory. It reads nodes and pods from informers, so a new process starts with the state
// of the cluster. It writes nothing: a group of pods may reserve nodes as a trial and take all of it back.
package plugin

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/metrics"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"

	"rowmill.io/scheduler/placement"
)

// Name is the name of the plugin in the configuration of the scheduler.
const Name = "RowmillTopology"

// syncLimit bounds the wait for the first complete list of nodes and pods.
const syncLimit = time.Minute

// Plugin implements the extension points.
type Plugin struct {
	state   *state
	metrics *ruleMetrics
	synced  func(context.Context) error
	// nominated lists the pods for which preemption makes room on a node.
	nominated func(node string) []fwk.PodInfo
	// snapshot returns the nodes and pods of the scheduler's current cycle.
	snapshot func() fwk.SharedLister
	retries  *retries
	// distances is nil without Dynamic Resource Allocation.
	distances *deviceDistances
}

var _ fwk.Plugin = &Plugin{}

// Name returns the name of the plugin.
func (*Plugin) Name() string { return Name }

// NewFactory returns a factory of plugins that share one state, so that several profiles of a scheduler see each other's
// reservations. register registers the metrics.
func NewFactory(register func(...metrics.Registerable)) frameworkruntime.PluginFactory {
	var mu sync.Mutex
	var shared *Plugin
	return func(ctx context.Context, object runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
		args, err := readArgs(object)
		if err != nil {
			return nil, fmt.Errorf("arguments of plugin %s: %w", Name, err)
		}
		mu.Lock()
		defer mu.Unlock()
		if shared != nil {
			if shared.state.args != *args {
				return nil, fmt.Errorf("arguments of plugin %s must be equal in all profiles, got %+v and %+v", Name, shared.state.args, *args)
			}
			return shared, nil
		}
		m := newRuleMetrics(register)
		s, err := newState(*args, m, klog.FromContext(ctx).WithName(Name))
		if err != nil {
			return nil, err
		}
		synced, err := s.follow(handle.SharedInformerFactory())
		if err != nil {
			return nil, fmt.Errorf("plugin %s: follow nodes and pods: %w", Name, err)
		}
		shared = &Plugin{
			state: s, metrics: m, synced: waitOnce(synced),
			nominated: handle.NominatedPodsForNode, snapshot: handle.SnapshotSharedLister,
			retries:   &retries{activate: handle.Activate, logger: s.logger, counts: map[types.UID]int{}},
			distances: newDeviceDistances(handle.SharedDRAManager()),
		}
		return shared, nil
	}
}

// waitOnce waits until the informers have delivered all objects that existed at the start, and later returns at once.
func waitOnce(synced []cache.InformerSynced) func(context.Context) error {
	var done atomic.Bool
	return func(ctx context.Context) error {
		if done.Load() {
			return nil
		}
		ctx, cancel := context.WithTimeout(ctx, syncLimit)
		defer cancel()
		if !cache.WaitForCacheSync(ctx.Done(), synced...) {
			return fmt.Errorf("nodes and pods were not listed within %v; see the log for failed requests to the API server", syncLimit)
		}
		done.Store(true)
		return nil
	}
}

// stateKey is the key of the plugin's data about one scheduling cycle.
const stateKey fwk.StateKey = Name

// cycle is the data about one scheduling cycle of one pod.
type cycle struct {
	question *placement.Question
	// freed is the count of the state when the cycle began.
	freed int
	// assumed grows while the framework asks what would be if pods were gone or nominated pods ran.
	assumed placement.Change
	// preference and distances are set by PreScore.
	preference *placement.Preference
	distances  map[string]int
}

// Clone copies what AddPod and RemovePod change.
func (c *cycle) Clone() fwk.StateData {
	other := *c
	other.assumed.Gone = append([]string(nil), c.assumed.Gone...)
	other.assumed.More = append([]placement.Addition(nil), c.assumed.More...)
	return &other
}

func cycleOf(state fwk.CycleState) (*cycle, *fwk.Status) {
	data, err := state.Read(stateKey)
	if err != nil {
		return nil, fwk.AsStatus(fmt.Errorf("plugin %s: PreFilter must be enabled: %w", Name, err))
	}
	c, ok := data.(*cycle)
	if !ok {
		return nil, fwk.AsStatus(errors.New("the data of the scheduling cycle has another type"))
	}
	return c, nil
}
