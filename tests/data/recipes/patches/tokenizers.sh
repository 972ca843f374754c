#!/bin/bash -eu
# A patch of the engine, in its container alone.
pip install --no-deps "tokenizers==0.22.1"
