// Package placement decides on which node of a cluster an instance of a service runs, and with which devices.
//
// It follows Algorithm 1 of Prism (GPU-disaggregated serving, NSDI 2025): all instances of a service run below one spine
// switch and below few leaf switches, with processors or GPUs near a NIC. It enforces four limits: resources of nodes,
// instances of one service per node (density), the share of each NIC, and the share of each leaf's uplink.
//
// The package keeps its state in memory, does no I/O and reads no clock. A Cluster is not safe for concurrent use.
// Equal sets of nodes and instances give equal decisions, independent of the order in which they were added.
package placement
