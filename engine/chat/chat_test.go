package chat

import (
	"testing"
)

func TestBuiltinIsChatML(t *testing.T) {
	in := Input{
		Messages:            []Message{{Role: "system", Content: "Be brief."}, {Role: "user", Content: "Hi"}},
		AddGenerationPrompt: true,
	}
	const want = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
	if got, err := Builtin().Render(in); err != nil || got != want {
		t.Fatalf("got %q, %v, want %q", got, err, want)
	}
}
