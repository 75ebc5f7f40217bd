package main

import (
	"errors"
	"flag"
	"fmt"
	"io"

	"rowmill.io/scheduler/placement"
	"rowmill.io/scheduler/placement/fragment"
	"rowmill.io/scheduler/placement/kube"
)

// snapshotFlags adds the flags with label keys to a command that reads a cluster.
func snapshotFlags(set *flag.FlagSet) *kube.Labels {
	labels := kube.DefaultLabels
	set.StringVar(&labels.Zone, "zone-label", labels.Zone, "label of the zone of a node")
	set.StringVar(&labels.Spine, "spine-label", labels.Spine, "label of the spine switch of a node")
	set.StringVar(&labels.Leaf, "leaf-label", labels.Leaf, "label of the leaf switch of a node")
	return &labels
}

func printWarnings(out io.Writer, s *kube.Snapshot) {
	for _, warning := range s.Warnings {
		fmt.Fprintln(out, "warning:", warning)
	}
}

func runFragments(arguments []string, in io.Reader, out io.Writer) error {
	set := flags("fragments")
	labels := snapshotFlags(set)
	if err := set.Parse(arguments); err != nil {
		return err
	}
	s, err := kube.Read(in, *labels)
	if err != nil {
		return err
	}
	printWarnings(out, s)
	nodes, pods := s.Fragments()
	if len(pods) == 0 {
		return fmt.Errorf("fragments: the list has no pods, and fragments are measured by the requests of pods: print pods too")
	}
	classes := fragment.Classes(pods, 1)
	asking := fragment.AskingGPU(classes)
	totals := fragment.Measure(nodes, asking, classes)
	fmt.Fprintf(out, "%d nodes, %d pods in %d classes of requests, %d of them with GPUs\n", len(nodes), len(pods), len(classes), len(asking))
	fmt.Fprintf(out, "cores: %.1f free, %.1f in fragments, %.1f on nodes where no class fits\n", totals.FreeCores, totals.FragmentCores, totals.NoneCores)
	if len(asking) == 0 {
		fmt.Fprintf(out, "GPUs: %.2f free; no pod requests a GPU\n", totals.FreeGPUs)
		return nil
	}
	fmt.Fprintf(out, "GPUs: %.2f free, %.2f in fragments, %.2f on nodes where no class with GPUs fits\n", totals.FreeGPUs, totals.FragmentGPUs, totals.NoneGPUs)
	for i := range nodes {
		n := &nodes[i]
		if lost := fragment.GPU(n, asking) / fragment.Whole; lost > 0 {
			fmt.Fprintf(out, "  %s: %.2f of %.2f free GPUs in fragments, %.1f cores free\n", n.Name, lost, float64(n.FreeGPU())/fragment.Whole, float64(n.Cores)/1000)
		}
	}
	return nil
}

// readLike reads the cluster and the pod that a command asks about.
func readLike(command string, arguments []string, in io.Reader, out io.Writer, more func(*flag.FlagSet)) (*placement.Cluster, *kube.Pod, error) {
	set := flags(command + " NAMESPACE/POD")
	labels := snapshotFlags(set)
	var options placement.Options
	set.Float64Var(&options.UplinkNICs, "uplink-nics", 0, "bandwidth of a leaf's uplink in NICs; 0: as many as its nodes have")
	more(set)
	if err := set.Parse(arguments); err != nil {
		return nil, nil, err
	}
	if set.NArg() != 1 {
		return nil, nil, fmt.Errorf("%s: name one pod as namespace/name, after the flags", command)
	}
	s, err := kube.Read(in, *labels)
	if err != nil {
		return nil, nil, err
	}
	pod, err := s.Find(set.Arg(0))
	if err != nil {
		return nil, nil, err
	}
	c, err := s.Cluster(options)
	printWarnings(out, s)
	return c, pod, err
}

func runPlan(arguments []string, in io.Reader, out io.Writer) error {
	limit := 0
	c, pod, err := readLike("plan", arguments, in, out, func(set *flag.FlagSet) {
		set.IntVar(&limit, "limit", 10_000, "stop counting here")
	})
	if err != nil {
		return err
	}
	copies, blocked, err := c.Plan([]placement.Instance{pod.Instance}, limit)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%d more pods like %s fit\n", copies, pod.Name)
	if blocked != nil {
		fmt.Fprintf(out, "the next: %v\n", blocked)
	}
	return nil
}

func runExplain(arguments []string, in io.Reader, out io.Writer) error {
	c, pod, err := readLike("explain", arguments, in, out, func(*flag.FlagSet) {})
	if err != nil {
		return err
	}
	if pod.Node != "" {
		fmt.Fprintf(out, "%s runs on node %q\n", pod.Name, pod.Node)
		return nil
	}
	a, err := c.Find(pod.Instance)
	if rejection := new(placement.Rejection); errors.As(err, &rejection) {
		fmt.Fprintf(out, "%s waits: %v\n", pod.Name, rejection)
		return nil
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s fits: node %q, distance between NIC and devices: %s\n", pod.Name, a.Node, a.Distance)
	return nil
}
