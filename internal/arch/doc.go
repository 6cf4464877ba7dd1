// Package arch holds no code: its tests are the architecture rules of kvlend
// (which package may import which, where unsafe and process exits may stand,
// how long files and functions may be, that every package says what it is for).
package arch
