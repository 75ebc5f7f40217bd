package kube

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

var suffixes = map[string]float64{
	"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
	"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50, "Ei": 1 << 60,
}

// parseQuantity parses a Kubernetes quantity, for example 500m, 16Gi or 1e3.
func parseQuantity(text string) (float64, error) {
	number := strings.TrimRight(text, "numkKMGTPEi")
	value, err := strconv.ParseFloat(number, 64)
	factor, known := suffixes[text[len(number):]]
	if err != nil || !known || math.IsNaN(value) || math.IsInf(value, 0) {
		return 0, fmt.Errorf("quantity %q is not a number with a Kubernetes suffix, such as 500m or 16Gi", text)
	}
	if value < 0 {
		return 0, fmt.Errorf("quantity %q is negative", text)
	}
	return value * factor, nil
}

// quantities is a resource list as the API writes it.
type quantities map[string]string

// Extended resources of nodes and pods.
const (
	GPUResource = "nvidia.com/gpu"
	// NICResource counts percent of a NIC.
	NICResource = "rowmill.io/nic-percent"
)

// amounts are the resources that placement uses: millicores, MiB, GPUs and percent of a NIC.
type amounts struct {
	cores, memory, disk int64
	gpus, nic           int
}

func (q quantities) amounts() (amounts, error) {
	var a amounts
	for _, field := range []struct {
		name  string
		scale float64
		set   func(float64)
	}{
		{"cpu", 1000, func(v float64) { a.cores = int64(v) }},
		{"memory", 1.0 / (1 << 20), func(v float64) { a.memory = int64(v) }},
		{"ephemeral-storage", 1.0 / (1 << 20), func(v float64) { a.disk = int64(v) }},
		{GPUResource, 1, func(v float64) { a.gpus = int(v) }},
		{NICResource, 1, func(v float64) { a.nic = int(v) }},
	} {
		text, ok := q[field.name]
		if !ok {
			continue
		}
		value, err := parseQuantity(text)
		if err != nil {
			return a, fmt.Errorf("%s: %w", field.name, err)
		}
		// Adding a tenth of the smallest unit makes up for rounding of binary fractions.
		field.set(math.Floor(value*field.scale + 0.1))
	}
	return a, nil
}

func (a amounts) plus(b amounts) amounts {
	return amounts{a.cores + b.cores, a.memory + b.memory, a.disk + b.disk, a.gpus + b.gpus, a.nic + b.nic}
}

func (a amounts) max(b amounts) amounts {
	return amounts{
		max(a.cores, b.cores), max(a.memory, b.memory), max(a.disk, b.disk), max(a.gpus, b.gpus), max(a.nic, b.nic),
	}
}
