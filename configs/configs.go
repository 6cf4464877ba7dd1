// Package configs is kvlend's configuration: the YAML schema, strict parsing,
// validation that reports every violation at once, defaults, example files and
// a JSON Schema for editors.
package configs
