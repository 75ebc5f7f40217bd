package plugin

import (
	"context"
	"fmt"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/component-base/metrics"
	resourceslicetracker "k8s.io/dynamic-resource-allocation/resourceslice/tracker"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/backend/queue"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultbinder"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/queuesort"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	schedulermetrics "k8s.io/kubernetes/pkg/scheduler/metrics"
	schedulertesting "k8s.io/kubernetes/pkg/scheduler/testing"
	frameworktesting "k8s.io/kubernetes/pkg/scheduler/testing/framework"
	"k8s.io/kubernetes/pkg/scheduler/util/assumecache"

	"rowmill.io/scheduler/placement/kube"
)

// fixture runs the plugin in the scheduler's own framework, over informers of client-go's fake API.
type fixture struct {
	*testing.T
	ctx      context.Context
	plugin   *Plugin
	fwk      framework.Framework
	snapshot *cache.Snapshot
	nodes    []*v1.Node
	registry metrics.KubeRegistry
	devices  fwk.SharedDRAManager
	// activated receives the pods that the plugin wants to be tried again.
	activated chan string
}

// Activate implements the framework's PodActivator.
func (f *fixture) Activate(_ klog.Logger, pods map[string]*v1.Pod) {
	for _, p := range pods {
		f.activated <- p.Name
	}
}

func node(name, spine, leaf, cores, nic string) *v1.Node {
	return schedulertesting.MakeNode().Name(name).
		Label(kube.DefaultLabels.Spine, spine).Label(kube.DefaultLabels.Leaf, leaf).
		Capacity(map[v1.ResourceName]string{"cpu": cores, "memory": "64Gi", "pods": "110", kube.NICResource: nic}).Obj()
}

// pod makes a pod of a service, or one without a service if the name of it is empty.
func pod(name, service, cores, nic string) *schedulertesting.PodWrapper {
	p := schedulertesting.MakePod().Name(name).Namespace("n").UID(name).
		Req(map[v1.ResourceName]string{"cpu": cores, kube.NICResource: nic})
	if service != "" {
		p = p.Label(kube.ServiceLabel, service)
	}
	return p
}

func unknown(args string) *runtime.Unknown {
	return &runtime.Unknown{Raw: []byte(args), ContentType: runtime.ContentTypeJSON}
}

func newFixture(t *testing.T, args string, nodes []*v1.Node, more ...runtime.Object) *fixture {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	f := &fixture{T: t, ctx: ctx, nodes: nodes, registry: metrics.NewKubeRegistry(), activated: make(chan string, 100)}
	var objects []runtime.Object
	for _, n := range nodes {
		objects = append(objects, n)
	}
	var pods []*v1.Pod
	for _, object := range more {
		objects = append(objects, object)
		if p, ok := object.(*v1.Pod); ok && p.Spec.NodeName != "" {
			pods = append(pods, p)
		}
	}
	client := fake.NewClientset(objects...)
	factory := informers.NewSharedInformerFactory(client, 0)
	f.snapshot = cache.NewSnapshot(pods, nodes)
	claims := assumecache.NewAssumeCache(klog.FromContext(ctx), factory.Resource().V1().ResourceClaims().Informer(), "ResourceClaim", "", nil)
	slices, err := resourceslicetracker.StartTracker(ctx, resourceslicetracker.Options{
		EnableConsumableCapacity: true, SliceInformer: factory.Resource().V1().ResourceSlices(), KubeClient: client,
	})
	if err != nil {
		t.Fatal(err)
	}
	f.devices = dynamicresources.NewDRAManager(ctx, claims, slices, factory)
	schedulermetrics.Register()
	waiting := queue.NewTestQueueWithInformerFactory(ctx, nil, factory)
	build := NewFactory(f.registry.MustRegister)
	withArgs := func(ctx context.Context, _ runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
		built, err := build(ctx, unknown(args), handle)
		if err == nil {
			f.plugin = built.(*Plugin)
		}
		return built, err
	}
	f.fwk, err = frameworktesting.NewFramework(ctx, []frameworktesting.RegisterPluginFunc{
		frameworktesting.RegisterQueueSortPlugin(queuesort.Name, queuesort.New),
		frameworktesting.RegisterBindPlugin(defaultbinder.Name, defaultbinder.New),
		frameworktesting.RegisterPluginAsExtensions(Name, withArgs, "PreFilter", "Filter", "PostFilter", "PreScore", "Score", "Reserve"),
	}, "test",
		frameworkruntime.WithClientSet(client), frameworkruntime.WithInformerFactory(factory), frameworkruntime.WithSnapshotSharedLister(f.snapshot),
		frameworkruntime.WithPodNominator(waiting), frameworkruntime.WithPodActivator(f),
		frameworkruntime.WithSharedDRAManager(f.devices))
	if err != nil {
		t.Fatal(err)
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	if err := f.plugin.synced(ctx); err != nil {
		t.Fatal(err)
	}
	return f
}

// answer is what the plugin says about a pod.
type answer struct {
	status *fwk.Status
	// fits holds nodes that pass; best those with the highest score.
	fits, best sets.Set[string]
	rejected   map[string]*fwk.Status
}

// ask runs a scheduling cycle up to the scores.
func (f *fixture) ask(p *v1.Pod) (answer, fwk.CycleState) {
	f.Helper()
	state := framework.NewCycleState()
	a := answer{fits: sets.New[string](), best: sets.New[string](), rejected: map[string]*fwk.Status{}}
	result, status, _ := f.fwk.RunPreFilterPlugins(f.ctx, state, p)
	if a.status = status; !status.IsSuccess() {
		return a, state
	}
	var fitting []fwk.NodeInfo
	for _, n := range f.nodes {
		if !result.AllNodes() && !result.NodeNames.Has(n.Name) {
			continue
		}
		info, err := f.snapshot.NodeInfos().Get(n.Name)
		if err != nil {
			f.Fatal(err)
		}
		if status := f.fwk.RunFilterPlugins(f.ctx, state, p, info); status.IsSuccess() {
			a.fits.Insert(n.Name)
			fitting = append(fitting, info)
		} else {
			a.rejected[n.Name] = status
		}
	}
	if status := f.fwk.RunPreScorePlugins(f.ctx, state, p, fitting); !status.IsSuccess() {
		f.Fatal(status)
	}
	scores, status := f.fwk.RunScorePlugins(f.ctx, state, p, fitting)
	if !status.IsSuccess() {
		f.Fatal(status)
	}
	most := int64(-1)
	for _, s := range scores {
		most = max(most, s.TotalScore)
	}
	for _, s := range scores {
		if s.TotalScore == most {
			a.best.Insert(s.Name)
		}
	}
	return a, state
}

// place asks, and reserves the first of the best nodes.
func (f *fixture) place(p *v1.Pod) string {
	f.Helper()
	a, state := f.ask(p)
	if len(a.best) == 0 {
		f.Fatalf("pod %s fits nowhere: %v, %v", p.Name, a.status, a.rejected)
	}
	chosen := sets.List(a.best)[0]
	if status := f.fwk.RunReservePluginsReserve(f.ctx, state, p, chosen); !status.IsSuccess() {
		f.Fatal(status)
	}
	return chosen
}

func (f *fixture) mustFit(p *v1.Pod, want ...string) {
	f.Helper()
	if a, _ := f.ask(p); !slices.Equal(sets.List(a.fits), want) {
		f.Errorf("pod %s fits %v, want %v; rejected %v, %v", p.Name, sets.List(a.fits), want, a.rejected, a.status)
	}
}

func (f *fixture) mustPrefer(p *v1.Pod, want ...string) {
	f.Helper()
	if a, _ := f.ask(p); !slices.Equal(sets.List(a.best), want) {
		f.Errorf("pod %s prefers %v, want %v; fits %v", p.Name, sets.List(a.best), want, sets.List(a.fits))
	}
}

// fabric makes two spines with two leaves of two nodes each, named spine-leaf-node.
func fabric(cores, nic string) []*v1.Node {
	var nodes []*v1.Node
	for spine := range 2 {
		for leaf := range 2 {
			for n := range 2 {
				nodes = append(nodes, node(fmt.Sprintf("%d-%d-%d", spine, leaf, n), fmt.Sprint("s", spine), fmt.Sprint("l", leaf), cores, nic))
			}
		}
	}
	return nodes
}
