// Package placement decides on which node of a cluster an instance of a service runs, and with which devices.
//
// It follows Algorithm 1 of Prism (GPU-disaggregated serving, NSDI 2025): all instances of a service stay below one
// spine switch, gather below few leaf switches, and get processors or GPUs near a NIC. It keeps four limits: resources
// of nodes, instances of one service on one node (density), the share of each NIC, and the share of each leaf's uplink.
//
// The package keeps its state in memory, does no I/O and reads no clock. A Cluster is not safe for concurrent use.
// Equal sets of nodes and instances give equal decisions, in whatever order they were added.
package placement
