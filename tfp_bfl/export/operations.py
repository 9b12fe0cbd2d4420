"""The operations that a SavedModel may use. None of them runs Python, reads or writes a file, or reaches a network."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What the exports of every model and kind are made of; a test holds this against them.
EXPORTED = _words(
    """
    Abs AddV2 All ArgMax Assert AvgPool BiasAdd BitwiseAnd Cast ConcatV2 Const Conv2D Cos DivNoNan Exp ExpandDims
    FloorDiv FusedBatchNormV3 GatherV2 GreaterEqual Identity LeakyRelu Less LessEqual Log LogicalAnd MatMul
    MaxPool Maximum Mean Minimum Mul NoOp OnesLike Pack Pad Placeholder Range ReadVariableOp
    RealDiv Relu Reshape RightShift Rsqrt Select SelectV2 Shape Sin Softmax Sqrt Square SquaredDifference Squeeze
    StatefulPartitionedCall StatelessRandomGetKeyCounter StatelessRandomNormalV2 StatelessRandomUniformFullIntV2
    StatelessRandomUniformIntV2 StatelessRandomUniformV2 StopGradient StridedSlice Sub Sum
    TensorListFromTensor TensorListGetItem TensorListReserve TensorListSetItem TensorListStack Tile VarHandleOp
    While ZerosLike
    """
)

# What other layers, activations of Keras, rows of tables and earlier exports add: functions of tensors alone, all of
# them.
ARITHMETIC = _words(
    """
    Add AddN Any BatchMatMulV2 BatchToSpaceND BroadcastTo DepthwiseConv2dNative Einsum Elu Equal Erf Expm1 Fill
    Floor FloorMod Greater Log1p LogSoftmax LogicalNot LogicalOr MatrixDiagPartV3 MatrixSetDiagV3 Max Min Neg
    NotEqual PartitionedCall Pow Prod Rank Reciprocal Relu6 ResourceGather ReverseV2 Round Selu Sigmoid Sign Size
    Slice Softplus Softsign SpaceToBatchND Split SplitV StatelessWhile StaticRegexReplace StringStrip Tanh Transpose
    Unpack Xlogy
    """
)

# TensorFlow saves and restores variables with these: only in functions that nothing else in the file calls.
SAVING = _words(
    """
    AssignVariableOp DisableCopyOnRead MergeV2Checkpoints RestoreV2 SaveV2 ShardedFilename StaticRegexFullMatch
    StringJoin
    """
)

# The path of the asset is a variable, which these set when TensorFlow reads the file without its tree of objects.
INITIALISING = _words("AssignVariableOp VarIsInitializedOp")
