package trees

import "fmt"

// FormatError says what is wrong with a model's text, and how to mend it.
type FormatError struct {
	Tree    int    // -1 for what stands before and after the trees
	Field   string // as the text spells it
	Problem string // with the fix
}

func (e *FormatError) Error() string {
	if e.Tree < 0 {
		return fmt.Sprintf("%s: %s", e.Field, e.Problem)
	}
	return fmt.Sprintf("tree %d: %s: %s", e.Tree, e.Field, e.Problem)
}

// Fixes that many problems share.
const (
	damaged = "; the file is damaged, publish the model again"
	foreign = "; train with LightGBM 3 or 4 and save_model"
)

// short is a value in a message: hostile ones are long.
func short(value string) string {
	if len(value) > 40 {
		return fmt.Sprintf("%.40q...", value)
	}
	return fmt.Sprintf("%q", value)
}
