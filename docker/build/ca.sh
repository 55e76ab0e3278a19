#!/bin/sh
# Sourced by the build's scripts: every client uses the build secret `ca_bundle` where one was given.
ca_bundle=/run/secrets/ca_bundle
if [ -s "$ca_bundle" ]; then
    export SSL_CERT_FILE=$ca_bundle PIP_CERT=$ca_bundle CURL_CA_BUNDLE=$ca_bundle REQUESTS_CA_BUNDLE=$ca_bundle
fi
