module rowmill.io/scheduler/placement

go 1.26

require pgregory.net/rapid v1.3.0
