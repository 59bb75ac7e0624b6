module clad

go 1.22
