package top

import (
	"errors"
	"os"
	"strings"

	"golang.org/x/term"
)

// Terminal is a Screen: the second page of a terminal, without a cursor.
type Terminal struct {
	in, out *os.File
	before  *term.State // of in; nil if that is no terminal
	keys    chan byte
}

// Open takes the terminal out; Close gives it back. If in is a terminal too, keys
// are read one by one and none of them is echoed or becomes a signal.
func Open(in, out *os.File) (*Terminal, error) {
	t := &Terminal{in: in, out: out}
	if fd := int(in.Fd()); term.IsTerminal(fd) {
		before, err := term.MakeRaw(fd)
		if err != nil {
			return nil, err
		}
		t.before, t.keys = before, make(chan byte)
		go t.read()
	}
	if _, err := out.WriteString("\x1b[?1049h\x1b[?25l"); err != nil {
		return nil, errors.Join(err, t.restore())
	}
	return t, nil
}

// read hands over keys. A read of a terminal can't be called off, so nobody waits
// for this goroutine: it ends with the process or with the terminal.
func (t *Terminal) read() {
	defer close(t.keys)
	var buf [1]byte
	for {
		if n, err := t.in.Read(buf[:]); n == 0 || err != nil {
			return
		}
		t.keys <- buf[0]
	}
}

// Keys are the bytes that are typed; nil if nobody can.
func (t *Terminal) Keys() <-chan byte { return t.keys }

// Size is that of the terminal, 80 × 24 if it does not say.
func (t *Terminal) Size() Size { return SizeOf(t.out) }

// SizeOf is the size of a terminal, 80 × 24 if it does not say.
func SizeOf(out *os.File) Size {
	width, height, err := term.GetSize(int(out.Fd()))
	if err != nil || width <= 0 || height <= 0 {
		return Size{Width: 80, Height: 24}
	}
	return Size{Width: width, Height: height}
}

// Show writes a frame over the last one, at once, so that nothing flickers. Lines
// are erased before they are written: a terminal may count the last cell of a full
// line as what is right of the cursor.
func (t *Terminal) Show(frame string) error {
	frame = "\x1b[H\x1b[K" + strings.ReplaceAll(frame, "\n", "\r\n\x1b[K")
	if strings.Count(frame, "\n")+1 < t.Size().Height {
		frame += "\r\n\x1b[J"
	}
	_, err := t.out.WriteString(frame)
	return err
}

// Close shows the cursor and the first page again, as they were.
func (t *Terminal) Close() error {
	_, err := t.out.WriteString("\x1b[?25h\x1b[?1049l")
	return errors.Join(err, t.restore())
}

func (t *Terminal) restore() error {
	if t.before == nil {
		return nil
	}
	return term.Restore(int(t.in.Fd()), t.before)
}
