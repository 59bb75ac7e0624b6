# Connects over and over until /srv/trial/stop is there, and counts who was refused.
use strict;
use warnings;
use IO::Socket::INET;
use IO::Socket::UNIX;
my ($tries, $refused, $last) = (0, 0, "");
until (-e "/srv/trial/stop") {
    for my $port (7440, 7441) {
        my $s = IO::Socket::INET->new(PeerAddr => "127.0.0.1", PeerPort => $port, Timeout => 20);
        $tries++;
        unless ($s) { $refused++; $last = "port $port: $@"; }
    }
    my $u = IO::Socket::UNIX->new(Peer => "/run/clad/clad.sock");
    $tries++;
    unless ($u) { $refused++; $last = "clad.sock: $!"; }
    select(undef, undef, undef, 0.02);
}
open(my $out, ">", "/srv/trial/probe.out") or die;
print $out "$tries $refused $last\n";
