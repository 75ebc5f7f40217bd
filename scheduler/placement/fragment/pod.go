package fragment

import (
	"cmp"
	"slices"
)

// Pod is the request of one pod: a number of GPUs, Share thousandths of each, and NIC percent of one NIC.
type Pod struct {
	Cores, Memory, Disk int64
	GPUs, Share, NIC    int
}

func comparePods(a, b Pod) int {
	return cmp.Or(
		cmp.Compare(a.Cores, b.Cores), cmp.Compare(a.Memory, b.Memory),
		cmp.Compare(a.Disk, b.Disk), cmp.Compare(a.GPUs, b.GPUs),
		cmp.Compare(a.Share, b.Share), cmp.Compare(a.NIC, b.NIC),
	)
}

// Class is a request with its fraction of all pods. The weights of a list of classes add up to 1.
type Class struct {
	Pod
	Weight float64
}

// Classes returns the distinct requests, most frequent first, until they cover the fraction popularity (in (0, 1]) of
// the pods.
func Classes(pods []Pod, popularity float64) []Class {
	counts := map[Pod]int{}
	for _, p := range pods {
		counts[p]++
	}
	classes := make([]Class, 0, len(counts))
	for p, count := range counts {
		classes = append(classes, Class{p, float64(count)})
	}
	slices.SortFunc(classes, func(a, b Class) int {
		return cmp.Or(cmp.Compare(b.Weight, a.Weight), comparePods(a.Pod, b.Pod))
	})
	covered := 0.0
	for i := range classes {
		if covered >= popularity*float64(len(pods)) {
			classes = classes[:i]
			break
		}
		covered += classes[i].Weight
	}
	for i := range classes {
		classes[i].Weight /= covered
	}
	return classes
}

// AskingGPU returns the classes that request a GPU, with weights scaled to add up to 1.
func AskingGPU(classes []Class) []Class {
	var asking []Class
	sum := 0.0
	for _, class := range classes {
		if class.GPUs > 0 {
			asking = append(asking, class)
			sum += class.Weight
		}
	}
	for i := range asking {
		asking[i].Weight /= sum
	}
	return asking
}
