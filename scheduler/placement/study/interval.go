package study

import (
	"math"
	"slices"
)

// Interval is a mean over seeds with its 95 % confidence interval, by Student's t distribution.
type Interval struct {
	Mean float64 `json:"mean"`
	// Half is half of the interval's width.
	Half  float64 `json:"half"`
	Min   float64 `json:"min"`
	Max   float64 `json:"max"`
	Seeds int     `json:"seeds"`
}

// quantiles are those of Student's t at 0.975, by degrees of freedom from 1.
var quantiles = [...]float64{
	12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
	2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093,
}

// IntervalOf averages values. One value gives an interval of width 0, because its spread is unknown.
func IntervalOf(values []float64) Interval {
	n := float64(len(values))
	if n == 0 {
		return Interval{}
	}
	mean, squares := 0.0, 0.0
	for _, v := range values {
		mean += v / n
	}
	for _, v := range values {
		squares += (v - mean) * (v - mean)
	}
	interval := Interval{Mean: mean, Min: slices.Min(values), Max: slices.Max(values), Seeds: len(values)}
	if len(values) > 1 {
		quantile := quantiles[min(len(values)-2, len(quantiles)-1)]
		interval.Half = quantile * math.Sqrt(squares/(n-1)/n)
	}
	return interval
}

// over averages one metric over many runs.
func over[Run any](runs []Run, figure func(*Run) float64) Interval {
	values := make([]float64, len(runs))
	for i := range runs {
		values[i] = figure(&runs[i])
	}
	return IntervalOf(values)
}
