#!/bin/sh
# Makes the certificates of the tests anew, valid for a hundred years. Run it in this folder.
set -eu
days=36500
make() { # name subject issuer extensions
    openssl ecparam -name prime256v1 -genkey -noout | openssl pkcs8 -topk8 -nocrypt -out "$1.key"
    openssl req -new -key "$1.key" -subj "$2" -out "$1.csr"
    printf '%s\n' "$4" > "$1.ext"
    if [ "$3" = self ]; then
        openssl x509 -req -in "$1.csr" -signkey "$1.key" -days $days -extfile "$1.ext" -out "$1.pem"
    else
        openssl x509 -req -in "$1.csr" -CA "$3.pem" -CAkey "$3.key" -CAcreateserial -days $days \
            -extfile "$1.ext" -out "$1.pem"
    fi
    rm -f "$1.csr" "$1.ext" ./*.srl
}
make ca '/CN=Windlass test authority' self 'basicConstraints=critical,CA:true'
make other-ca '/CN=Another authority' self 'basicConstraints=critical,CA:true'
make localhost '/CN=localhost' ca 'subjectAltName=DNS:localhost,IP:127.0.0.1'
make example '/CN=example.org' ca 'subjectAltName=DNS:example.org,DNS:*.example.org'
# As of `openssl req -x509`: a server's own certificate that is an authority.
make own '/CN=localhost' self 'basicConstraints=critical,CA:true
subjectAltName=DNS:localhost,IP:127.0.0.1'
make client '/O=Windlass, tests/CN=client 1' ca 'extendedKeyUsage=clientAuth'
make stranger '/CN=stranger' other-ca 'extendedKeyUsage=clientAuth'
# For simulations: signatures of ECDSA differ in length, those of Ed25519 do not.
openssl req -x509 -newkey ed25519 -nodes -keyout ed25519.key -out ed25519.pem -days $days \
    -subj '/CN=localhost' -addext basicConstraints=critical,CA:false \
    -addext subjectAltName=DNS:localhost,IP:127.0.0.1
rm ca.key other-ca.key
