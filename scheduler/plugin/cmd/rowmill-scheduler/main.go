// Command rowmill-scheduler is kube-scheduler with the plugin RowmillTopology.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register" // The flag --logging-format=json.
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // Metrics of requests to the API server.
	_ "k8s.io/component-base/metrics/prometheus/version"  // The metric kubernetes_build_info.
	"k8s.io/kubernetes/cmd/kube-scheduler/app"

	"rowmill.io/scheduler/plugin"
)

func main() {
	os.Exit(cli.Run(app.NewSchedulerCommand(app.WithPlugin(plugin.Name, plugin.NewFactory(legacyregistry.MustRegister)))))
}
