package clad

import (
	"bytes"
	"fmt"
	"os"

	"clad/internal/wire"
)

// tokenFile names the file of the token.
const tokenFile = "CLAD_TOKEN_FILE"

// token is what the file that $CLAD_TOKEN_FILE names holds, without white space around it; nothing without the variable,
// and on a Unix socket, where the kernel names the user. It is read at each connection.
func (a address) token() ([]byte, error) {
	file := os.Getenv(tokenFile)
	if file == "" || a.knowsPeer() {
		return nil, nil
	}
	token, err := os.ReadFile(file)
	if err != nil {
		return nil, &ConnectError{Address: a.text, Err: fmt.Errorf("%s: %w", tokenFile, err)}
	}
	token = bytes.TrimSpace(token)
	if n := len(token); n == 0 || n > wire.SecretBytesMax {
		err := fmt.Errorf("%s=%s: a token has 1 to %d bytes, this one %d", tokenFile, file, wire.SecretBytesMax, n)
		return nil, &ConnectError{Address: a.text, Err: err}
	}
	return token, nil
}
