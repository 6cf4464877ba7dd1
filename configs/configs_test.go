package configs

import "testing"

func TestDefault(t *testing.T) {
	c := Default()
	for _, w := range c.Warnings(CatalogGeometry) {
		t.Error(w)
	}
	m, _ := c.Model("atlas")
	capacity, err := c.Capacity(m, CatalogGeometry)
	if err != nil {
		t.Fatal(err)
	}
	if capacity.Tokens != 4608 || capacity.AloneTokens != 1024 || capacity.NLSC != 256 || capacity.NRC != 32 {
		t.Errorf("capacity of atlas: %+v", capacity)
	}
}
