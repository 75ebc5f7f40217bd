package study

import "testing"

func TestTmp2(t *testing.T) {
	r, err := Promotion()
	t.Logf("%+v %v", r, err)
	s, err := Speed(1, 50000)
	t.Logf("%+v %v", s, err)
}
